"""One file per figure: `make bench NAME=<file>`; each measures its peer in the same run and exits 1 when short."""
