"""What running sequences keep: keys, values and states, in slots or pages; shared prefixes."""
