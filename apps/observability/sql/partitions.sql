SELECT child.relname
FROM pg_inherits
JOIN pg_class AS child ON child.oid = inhrelid
WHERE inhparent = to_regclass(%(series)s)
ORDER BY child.relname
