"""How the measured curves grow, and how a run is shown."""
