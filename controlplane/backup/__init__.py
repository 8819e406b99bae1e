"""Backup and restore of database, artifact store and keys: `make backup`, `make restore`."""
