SELECT format('%%I.%%I', materialization_hypertable_schema, materialization_hypertable_name)
FROM timescaledb_information.continuous_aggregates
WHERE view_name = %(view)s
