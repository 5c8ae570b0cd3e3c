"""The demo models of every task but text-generation: a module makes each."""
