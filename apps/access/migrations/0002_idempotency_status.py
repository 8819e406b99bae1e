from django.db import migrations, models


class Migration(migrations.Migration):
    """The stored answer commits with its effect: a row without a status can't be."""

    dependencies = [
        ("access", "0001_initial"),
    ]

    operations = [
        migrations.RunSQL("DELETE FROM access_idempotencykey WHERE status IS NULL", migrations.RunSQL.noop),
        migrations.AlterField(
            model_name="idempotencykey",
            name="status",
            field=models.PositiveSmallIntegerField(),
        ),
    ]
