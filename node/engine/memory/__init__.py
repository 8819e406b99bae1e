"""Where an engine's bytes live."""
