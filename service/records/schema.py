"""Every table of the control database, for migrations and for the test that they are complete."""

from sqlmodel import SQLModel

from service.http.routing import IdempotentAnswer
from service.records.audit import AuditEntry
from service.records.catalogs import Catalog
from service.records.health import HealthSample, TableHealth
from service.records.jobs import Attempt, Event, Job, Turn
from service.records.keys import ApiKey, BrowserSession, LoginToken
from service.records.patterns import EnrollmentPattern
from service.records.policies import Policy, PolicyAttachment
from service.records.system import Lease, SystemState
from service.records.tables import AddressCounter, EnrolledTable
from service.records.webhooks import Webhook, WebhookDelivery
from service.records.workers import Worker

TABLES: tuple[type[SQLModel], ...] = (
    AddressCounter,
    ApiKey,
    Attempt,
    AuditEntry,
    BrowserSession,
    Catalog,
    EnrolledTable,
    EnrollmentPattern,
    Event,
    HealthSample,
    IdempotentAnswer,
    Job,
    Lease,
    LoginToken,
    Policy,
    PolicyAttachment,
    SystemState,
    TableHealth,
    Turn,
    Webhook,
    WebhookDelivery,
    Worker,
)
