#!/usr/bin/env bash
# Runs once, when the database's volume is empty: the owner of the tables, and the role of web and workers, which
# `manage.py grant_app_role` gives its rights.
set -euo pipefail

psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
  --set owner_password="$FARRIER_DB_OWNER_PASSWORD" --set app_password="$FARRIER_DB_APP_PASSWORD" <<'SQL'
CREATE ROLE farrier_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE farrier_app LOGIN PASSWORD :'app_password';
-- the first migration asks whether TimescaleDB is preloaded, which is not for everybody to know
GRANT pg_read_all_settings TO farrier_owner;
CREATE DATABASE farrier OWNER farrier_owner;
\connect farrier
CREATE EXTENSION IF NOT EXISTS timescaledb;
SQL
