"""From an artifact's graph to something that runs."""
