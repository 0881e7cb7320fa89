"""Every table of the control database, for migrations and for the test that they are complete."""

from sqlmodel import SQLModel

from service.audit.models import AuditEntry
from service.auth.models import ApiKey, BrowserSession, LoginToken
from service.catalogs.models import Catalog
from service.discovery.models import EnrollmentPattern
from service.http.routing import IdempotentAnswer
from service.index_health.models import HealthSample, TableHealth
from service.jobs.models import Attempt, Event, Job, Lease, SystemState, Turn
from service.policies.models import Policy, PolicyAttachment
from service.tables.models import AddressCounter, EnrolledTable
from service.webhooks.models import Webhook, WebhookDelivery
from service.workers.models import Worker

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
