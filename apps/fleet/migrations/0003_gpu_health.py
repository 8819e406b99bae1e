"""GPUs get a short number for the time series, and a health of their own."""

from django.db import migrations, models
from django.db.models import Func, Value

HEALTH = [
    ("unknown", "no data"),
    ("ok", "healthy"),
    ("throttled", "throttled"),
    ("hot", "hot"),
    ("xid", "Xid error"),
    ("lost", "lost"),
]


class Migration(migrations.Migration):
    dependencies = [("fleet", "0002_jointoken_used_by")]

    operations = [
        migrations.RunSQL(
            "CREATE SEQUENCE fleet_gpu_number AS integer", reverse_sql="DROP SEQUENCE IF EXISTS fleet_gpu_number"
        ),
        migrations.AddField(
            model_name="gpu",
            name="number",
            field=models.IntegerField(unique=True, db_default=Func(Value("fleet_gpu_number"), function="nextval")),
        ),
        migrations.AddField(
            model_name="gpu",
            name="health",
            field=models.CharField(max_length=16, choices=HEALTH, default="unknown"),
        ),
        migrations.AddField(
            model_name="gpu",
            name="health_reason",
            field=models.TextField(blank=True, default=""),
            preserve_default=False,
        ),
        migrations.AddField(model_name="gpu", name="health_since", field=models.DateTimeField(null=True)),
        migrations.AddConstraint(
            model_name="gpu",
            constraint=models.CheckConstraint(
                condition=models.Q(health__in=[value for value, _ in HEALTH]), name="fleet_gpu_health"
            ),
        ),
    ]
