"""The console's shapes, and which state has which: word + shape + colour, never colour alone."""

from __future__ import annotations

# Bodies of 16 × 16 SVGs; filled with the current colour.
ICONS: dict[str, str] = {
    "logo": '<path d="M3.2 2.2C1.8 4 1 6 1 8.1 1 10.6 2 12.8 3.6 14.4h3.1v-2.6C5.2 10.9 4.4 9.6 4.4 8'
    "c0-1.3.4-2.5 1.1-3.5"
    "C6.2 3.9 7 3.6 8 3.6s1.8.3 2.5.9c.7 1 1.1 2.2 1.1 3.5 0 1.6-.8 2.9-2.3 3.8v2.6h3.1"
    'C14 12.8 15 10.6 15 8.1c0-2.1-.8-4.1-2.2-5.9C11.5 1 9.8.4 8 .4S4.5 1 3.2 2.2z"/>',
    "check": '<path d="M6.3 12.9 1.9 8.5l1.7-1.7 2.7 2.7 6.1-6.1 1.7 1.7z"/>',
    "cross": '<path d="M3.7 2.3 8 6.6l4.3-4.3 1.4 1.4L9.4 8l4.3 4.3-1.4 1.4L8 9.4l-4.3 4.3-1.4-1.4L6.6 8 2.3 3.7z"/>',
    "half": '<path d="M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zm0 1.6v9.8a4.9 4.9 0 0 0 0-9.8z'
    '" fill-rule="evenodd"/>',
    "dot": '<circle cx="8" cy="8" r="5.5"/>',
    "circle": '<path d="M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zm0 1.7a4.3 4.3 0 1 1 0 8.6 4.3 4.3 0 0 1 0-8.6z'
    '" fill-rule="evenodd"/>',
    "play": '<path d="M3.5 2v12l10-6z"/>',
    "up": '<path d="M8 1.8 13.8 8H10v6H6V8H2.2z"/>',
    "back": '<path d="M6.2 2 1.5 6.5 6.2 11V8h2.6c1.8 0 3 .9 3 2.7V13h2.2v-2.5C14 7.2 12 5.5 8.9 5.5H6.2z"/>',
    "stop": '<path d="M3 3h10v10H3z"/>',
    "question": '<path d="M8 1a4 4 0 0 0-4 3.8h2.1A1.9 1.9 0 1 1 8 6.8c-.7 0-1.1.4-1.1 1.1v1.7h2.2V8.7A4 4 0 0 0 8 1z'
    'M6.8 11.2h2.4v2.6H6.8z"/>',
    "bang": '<path d="M8 1.2 15.3 14H.7zM7.1 6v4h1.8V6zm0 5v1.7h1.8V11z" fill-rule="evenodd"/>',
    "lock": '<path d="M4.5 6.5V5a3.5 3.5 0 0 1 7 0v1.5H13V15H3V6.5zm1.9 0h3.2V5a1.6 1.6 0 0 0-3.2 0z'
    '" fill-rule="evenodd"/>',
    "dash": '<path d="M2.5 7h11v2h-11z"/>',
    "moon": '<path d="M6.3 1.4a6.7 6.7 0 1 0 8.3 8.3A5.6 5.6 0 0 1 6.3 1.4z"/>',
    "person": '<path d="M8 1.5a3 3 0 1 1 0 6 3 3 0 0 1 0-6zM2 14.5c0-3.5 2.6-5.5 6-5.5s6 2 6 5.5z"/>',
}

# state → (shape, colour class, word)
STATES: dict[str, tuple[str, str, str]] = {
    # rollouts
    "pending": ("circle", "mut", "Pending"),
    "progressing": ("play", "info", "Progressing"),
    "paused": ("half", "warn", "Paused"),
    "promoting": ("up", "info", "Promoting"),
    "completed": ("check", "ok", "Completed"),
    "rolling_back": ("back", "bad", "Rolling back"),
    "rolled_back": ("back", "bad", "Rolled back"),
    "aborting": ("stop", "bad", "Aborting"),
    "aborted": ("stop", "bad", "Aborted"),
    "superseded": ("dash", "mut", "Superseded"),
    # stages
    "waiting": ("circle", "mut", "Waiting"),
    "running": ("dot", "ok", "Running"),
    "passed": ("check", "ok", "Passed"),
    "failed": ("cross", "bad", "Failed"),
    # verdicts
    "successful": ("check", "ok", "successful"),
    "inconclusive": ("half", "warn", "inconclusive"),
    "error": ("bang", "bad", "error"),
    "no_data": ("question", "warn", "no data"),
    # nodes
    "accepted": ("circle", "ok", "Accepted"),
    "rejected": ("cross", "bad", "Rejected"),
    "active": ("check", "ok", "Active"),
    "cordoned": ("lock", "warn", "Cordoned"),
    "draining": ("back", "warn", "Draining"),
    "quarantined": ("bang", "bad", "Quarantined"),
    "banned": ("stop", "bad", "Banned"),
    "away": ("question", "warn", "Not heard from"),
    # deployments
    "assigned": ("circle", "mut", "Assigned"),
    "downloading": ("half", "info", "Downloading"),
    "verifying": ("half", "info", "Verifying"),
    "loading": ("half", "info", "Loading"),
    "warming": ("half", "info", "Warming up"),
    "expired": ("bang", "bad", "Expired"),
    "unreported": ("question", "warn", "Not reported yet"),
    # versions
    "reserved": ("circle", "mut", "Reserved"),
    "published": ("check", "ok", "Published"),
    "abandoned": ("dash", "mut", "Abandoned"),
    # GPUs
    "ok": ("check", "ok", "Healthy"),
    "throttled": ("half", "warn", "Throttled"),
    "hot": ("bang", "bad", "Hot"),
    "xid": ("cross", "bad", "Xid error"),
    "lost": ("stop", "bad", "Lost"),
    # holds
    "held": ("lock", "bad", "Held"),
    "lifted": ("check", "mut", "Lifted"),
    # alerts
    "firing": ("bang", "bad", "Firing"),
    "resolved": ("check", "ok", "Resolved"),
    "silenced": ("moon", "mut", "Silenced"),
    "page": ("bang", "bad", "Page"),
    "ticket": ("dot", "warn", "Ticket"),
    "delivered": ("check", "ok", "Delivered"),
    "parked": ("stop", "bad", "Given up"),
    "trying": ("half", "warn", "Trying again"),
    "due": ("circle", "mut", "To be sent"),
    # conditions
    "true": ("dot", "ink", "true"),
    "false": ("circle", "ink", "false"),
    "unknown": ("question", "warn", "unknown"),
}
