"""What every engine has around its model: what a request passes first, and the watchdog."""
