-- whole buckets of the whole fleet; what is there already is made anew
INSERT INTO {target} (time, gpu, samples, simulated, {columns})
SELECT date_bin(%(width)s, time, TIMESTAMPTZ '2000-01-01 00:00:00+00'), gpu, {samples}, bool_or(simulated),
       {aggregates}
FROM {source}
WHERE time >= %(since)s
  AND time < %(until)s
GROUP BY 1, 2
ON CONFLICT (gpu, time) DO UPDATE SET samples = excluded.samples, simulated = excluded.simulated, {updates}
