DELETE FROM {target}
WHERE gpu = %(gpu)s
  AND time BETWEEN %(first)s AND %(last)s
