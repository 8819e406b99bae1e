"""The agent's line to the control plane: enrols, renews, polls, and is woken early when an assignment changes."""

from __future__ import annotations

import base64
import json
import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any

from aifb.errors import AifbError
from node.agent import AGENT_VERSION
from node.agent.backoff import Backoff
from node.agent.board import Board
from node.agent.client import ControlPlane
from node.agent.errors import AgentError, CredentialStale, NodePending, Permanent
from node.agent.identity import Enrolment, Identity, IdentityStore, JoinToken, enrol, is_renewal_due, renew
from node.agent.preflight import condition
from node.agent.settings import Settings
from node.agent.telemetry import Boot
from node.agent.trust import TrustStore
from protocol.messages import AssignmentBundle, ConditionReport, PollRequest, PollResponse

log = logging.getLogger(__name__)

MIN_GAP_S = 0.25  # between two polls, however much there is to tell
MAX_DELAY_S = 30.0
PENDING_S = 5.0
WAIT_GAP_S = 1.0
Clock = Callable[[], float]


class Link:
    """Talks to the control plane from two threads of its own; losing it stops nothing on the node.

    `now` is the wall clock in Unix seconds; `facts` tells this host's hardware; `assigned` is called once a new
    assignment is verified and stored.
    """

    def __init__(
        self,
        settings: Settings,
        control_plane: ControlPlane,
        identities: IdentityStore,
        trust: TrustStore,
        board: Board,
        boot: Boot,
        *,
        facts: Callable[[], dict[str, Any]] = dict,
        assigned: Callable[[], None] = lambda: None,
        now: Clock = time.time,
    ) -> None:
        self._settings = settings
        self._control_plane = control_plane
        self._identities = identities
        self._trust = trust
        self._board = board
        self._boot = boot
        self._facts = facts
        self._has_told_facts = False
        self._assigned = assigned
        self._now = now
        self._report_seq = count(1)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._poll_forever, name="poll", daemon=True),
            threading.Thread(target=self._wait_forever, name="wait", daemon=True),
        ]
        self._state: AgentError | None = None
        self._has_polled = False
        self.identity: Identity | None = identities.load()
        if self.identity is not None:
            control_plane.credential = self.identity.credential()

    def start(self) -> None:
        """Begin to talk."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop talking soon; a request that is going on is not waited for."""
        self._stop.set()
        self._wake.set()
        if self._threads[0].is_alive():
            self._threads[0].join(timeout=2.0)

    def report_soon(self) -> None:
        """There is news: don't wait for the interval."""
        self._wake.set()

    def condition(self) -> ConditionReport:
        """Whether the control plane is there, and what it said last."""
        state = self._state
        if state is not None:
            return condition("ControlPlaneReachable", False, state.code, state.sentence)
        return condition("ControlPlaneReachable", True if self._has_polled else None)

    def poll_once(self) -> PollResponse:
        """Enrol if needed, renew if due, report, and take what is assigned. Raises AgentError."""
        identity = self._ensure_identity()
        if is_renewal_due(identity, self._utc(), self._control_plane.clock_offset_s):
            self.identity = identity = renew(self._identities, self._control_plane, identity)
        deployments, conditions, refusals = self._board.read()
        last = self._trust.last
        answer = self._control_plane.poll(
            PollRequest(
                boot_id=self._boot.id,
                report_seq=next(self._report_seq),
                agent_version=AGENT_VERSION,
                observed_epoch=last.director_epoch if last else 0,
                observed_sequence=last.sequence if last else 0,
                observed_issued=last.issued if last else None,
                clock_offset_s=self._control_plane.clock_offset_s,
                deployments=deployments,
                conditions=conditions,
                refusals=refusals,
                gateway_url=self._settings.gateway.url,
                # once a boot: hardware changes while the agent is away
                hardware=None if self._has_told_facts else self._facts(),
            )
        )
        self._has_told_facts = True
        self._board.told(refusals)
        self._take(answer, identity)
        return answer

    def _take(self, answer: PollResponse, identity: Identity) -> None:
        """Follow the trust root first, then accept the assignment; what is refused is noted and changes nothing."""
        try:
            root = self._trust.root
            if root is not None and answer.root_version > root.version:
                self._trust.accept_successors(self._control_plane.root_envelopes(root.version))
            if answer.assignment is None:
                return
            if self._trust.accept_assignment(answer.assignment, node_id=identity.node, now=self._utc()):
                last = self._trust.last
                log.info("assignment %s accepted", last and last.sequence)
                self._assigned()
                self.report_soon()
        except AifbError as refused:
            sequence = _claimed_sequence(answer.assignment) if answer.assignment else None
            self._board.refuse(refused.code, refused.sentence, at=self._utc(), sequence=sequence)

    def _ensure_identity(self) -> Identity:
        if self.identity is not None:
            return self.identity
        if self._settings.join_token_file is None:
            raise Permanent("no_join_token", "This node has not enrolled yet: start it with --join-token-file.")
        try:
            token = JoinToken.parse(self._settings.join_token_file.read_text())
        except OSError as missing:
            raise Permanent("no_join_token", f"The join token can't be read: {missing}.") from None
        enrolment = Enrolment(
            token, self._settings.name, self._settings.zone, self._settings.gateway.url, self._facts()
        )
        try:
            self.identity = enrol(
                self._identities, self._control_plane, self._control_plane.key, enrolment,
                accept_root=self._trust.accept_root_chain,
            )  # fmt: skip
        except AifbError as refused:
            raise Permanent(refused.code, refused.sentence) from None
        log.info("enrolled as node %s", self.identity.node)
        return self.identity

    def _poll_forever(self) -> None:
        asked = self._settings.poll_interval_s
        backoff = Backoff(1.0, MAX_DELAY_S if asked is None else max(2.0, 4 * asked))
        while not self._stop.is_set():
            self._wake.clear()
            try:
                answer = self.poll_once()
                self._note(None)
                backoff.reset()
                interval = self._settings.poll_interval_s or answer.interval_s
                delay = interval + random.uniform(0.0, answer.jitter_s)  # noqa: S311 (spreads load, guards nothing)
            except NodePending as pending:
                self._note(pending)
                delay = PENDING_S
            except CredentialStale as stale:
                self._note(stale)
                delay = self._renew_or(backoff)
            except AgentError as failed:
                self._note(failed)
                delay = backoff.next_s(getattr(failed, "retry_after_s", None))
            self._stop.wait(MIN_GAP_S)
            # news can't reach a control plane that is away: then only time ends the wait
            (self._wake if self._state is None else self._stop).wait(max(0.0, delay - MIN_GAP_S))

    def _renew_or(self, backoff: Backoff) -> float:
        """Renew a credential that was called stale; the delay before the next poll."""
        try:
            if self.identity is not None:
                self.identity = renew(self._identities, self._control_plane, self.identity)
                return 0.0
        except AgentError as failed:
            self._note(failed)
        return backoff.next_s()

    def _note(self, state: AgentError | None) -> None:
        if state is not None and (self._state is None or self._state.code != state.code):
            log.warning("control plane: %s (%s); what runs goes on", state.sentence, state.code)
        if state is None and self._state is not None:
            log.info("the control plane is there again")
        self._state, self._has_polled = state, self._has_polled or state is None

    def _wait_forever(self) -> None:
        """Ask to be woken; where that is not to be had, polling alone does."""
        backoff, seen = Backoff(2.0, 60.0), 0
        while not self._stop.is_set():
            if self._control_plane.credential is None or not self._has_polled:
                self._stop.wait(WAIT_GAP_S)
                continue
            last = self._trust.last
            seen = max(seen, last.sequence if last else 0)
            try:
                answer = self._control_plane.wait(seen)
            except AgentError as failed:
                log.debug("waiting for assignments is not to be had: %s", failed)
                self._stop.wait(backoff.next_s())
                continue
            backoff.reset()
            if answer.sequence > seen:
                # one that is refused must not wake us for ever
                seen = answer.sequence
                self.report_soon()
            else:
                self._stop.wait(WAIT_GAP_S / 10)

    def _utc(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)


def _claimed_sequence(bundle: AssignmentBundle) -> int | None:
    """The sequence that a refused bundle states, for the report only: nothing in it is verified."""
    try:
        sequence = json.loads(base64.b64decode(bundle.statement))["sequence"]
    except (ValueError, KeyError, TypeError):
        return None
    return sequence if isinstance(sequence, int) and 0 <= sequence < 1 << 63 else None
