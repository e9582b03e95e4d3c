"""The search for the settings that are fastest on this machine."""
