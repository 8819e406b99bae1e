SELECT gpu, date_bin(%(step)s, time, TIMESTAMPTZ '2000-01-01 00:00:00+00') AS bucket, time,
       {total} AS total, {count} AS count, {low} AS low, {high} AS high
FROM {table}
WHERE gpu = ANY(%(gpus)s)
  AND time >= %({table}_since)s
  AND time < %({table}_until)s
  AND {present}
