"""Every `type` of problem that a call can answer, for people: at /problems/<slug>, and in docs/errors.md.

`python -m service.problems` writes docs/errors.md; a test keeps it and this list complete. The errors
themselves are raised where they are found out, with what is known there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trust import refusals

PROBLEM_PATH = "/problems/"
"""Where each `type` is explained."""
DOCUMENT = Path(__file__).parents[1] / "docs" / "errors.md"


@dataclass(frozen=True)
class ProblemType:
    status: tuple[int, ...]
    title: str
    meaning: str
    """What is the case when it is answered."""
    remedy: str
    fields: Mapping[str, str] = field(default_factory=dict)
    """What the problem document has beyond the fields that all have."""


_ERRORS = {"errors": "the findings, each with its `field`, with dots, and a `message`"}
_DENIED = {"action": "what was refused, as in the audit log", "target": "what it was to be done to"}

PROBLEMS: dict[str, ProblemType] = {
    "answer-too-large": ProblemType(
        (422,),
        refusals.ANSWER_TOO_LARGE.title,
        "There are more than 100,000 rows, or 64 MiB of them; or 4 MiB in one snapshot of a history, or "
        "8 MiB in all of its snapshots.",
        refusals.ANSWER_TOO_LARGE.remedy,
    ),
    "api-key-given": ProblemType(
        (409,),
        "The secret of this key is a setting",
        "It can't be rotated here, since the secret comes with the settings of the service.",
        "Start the service with another secret in the setting named in `detail`, then revoke this key.",
    ),
    "api-key-not-active": ProblemType(
        (409,),
        "This key is no longer active",
        "It has expired or was revoked, so it can't be rotated.",
        "Make a new one: POST /api/v1/api-keys.",
    ),
    "api-key-not-found": ProblemType(
        (404,), "No such API key", "No API key has this id.", "List them: GET /api/v1/api-keys."
    ),
    "api-key-rotated": ProblemType(
        (409,),
        "The key has been rotated in the meantime",
        "The secret that was to be replaced, by its `prefix`, is no longer the key's.",
        "Use the secret that somebody has made meanwhile, or send the prefix that the key has now.",
    ),
    "api-key-scoped": ProblemType(
        (401,),
        "This API key cannot sign in a browser",
        "The key has scopes, and pages show more than any of them.",
        "Sign in with a key that has no scopes.",
    ),
    "body-too-deep": ProblemType(
        (422,),
        "The request body is nested too deeply",
        "Objects and lists of a body may be nested 64 levels deep.",
        "Send a flatter body; /docs describes what every call takes.",
        {"limit_depth": "how many levels it may have"},
    ),
    "body-too-large": ProblemType(
        (413,),
        "The request body is too large",
        "A body may have 1 MiB, a worker's report 64 MiB, and JSON 500,000 values.",
        "Send less at once, in several requests.",
        {"limit_bytes": "how many bytes it may have"},
    ),
    "branch-not-found": ProblemType(
        (422,),
        refusals.NO_BRANCH,
        "The Iceberg table has no branch of that name, or no longer has one.",
        "Name one of the branches in `detail`, or leave `branch` out for main.",
    ),
    "catalog-busy": ProblemType(
        (503,),
        "Too many requests wait for catalogs",
        "A few requests may wait for one catalog at a time, and some more for all of them.",
        "Send the request again after the seconds that Retry-After names.",
    ),
    "catalog-exists": ProblemType(
        (409,),
        "A catalog of that name already exists",
        "Names of catalogs are unique.",
        "Choose another name, or PATCH the existing catalog.",
    ),
    "catalog-in-use": ProblemType(
        (409,),
        "Tables of this catalog are enrolled",
        "A catalog stays as long as tables are enrolled from it.",
        "DELETE the tables named in `detail` first.",
    ),
    "catalog-limit-exceeded": ProblemType(
        (502,),
        refusals.CATALOG_ANSWER_TOO_LARGE,
        "An answer, a list or a metadata file goes beyond a bound; `detail` names it. It was not read to the "
        "end.",
        "Expire snapshots of a table whose metadata is too large; look at one namespace of a catalog with "
        "too many tables. docs/security.md has the bounds.",
    ),
    "catalog-not-found": ProblemType(
        (404, 422),
        "No such catalog",
        "No catalog has this name or id: 404 if the path names it, 422 if the body does.",
        "List them: GET /api/v1/catalogs; or register it: POST /api/v1/catalogs.",
    ),
    "catalog-redirects": ProblemType(
        (502,),
        refusals.CATALOG_REDIRECTS,
        "A REST catalog answered with a redirect, another `uri` or another store's endpoint, where "
        "credentials would go too. They are sent to no host that the record does not name.",
        "If that is where the catalog or its store is, give it as `uri` or as the endpoint in the record.",
    ),
    "catalog-too-slow": ProblemType(
        (502,),
        refusals.CATALOG_TOO_SLOW,
        "Each of its answers may have come in time, but not all that was asked of it; a request has a limit "
        "for all of them together.",
        "Look at the catalog's own log for what is slow. The time is four times "
        "ICESTREAM_CATALOG_TIMEOUT_SECONDS.",
    ),
    "catalog-unreachable": ProblemType(
        (502,),
        "The catalog could not be read",
        "The catalog did not answer, refused the credentials or failed; `detail` has its words.",
        "POST /api/v1/catalogs/{id}/check says what can be seen; correct the catalog's properties.",
    ),
    "changed-at-the-same-time": ProblemType(
        (409,),
        "Another request was faster",
        "Another request made or removed the same thing, or what this one refers to, at the same time.",
        "GET what is there now, and send the request again if it is still wanted.",
    ),
    "csrf-failed": ProblemType(
        (403,),
        "The request did not come from our page",
        "A browser session sent a write without its CSRF token.",
        "Reload the page and try again. Programs use an API key, which needs no such token.",
        _DENIED,
    ),
    "cursor-mismatch": ProblemType(
        (400,),
        "The cursor belongs to another list",
        "A cursor holds for the list, the sort and the filters that it was given with.",
        "Send it with the sort and filters of its page, or leave it out to start again.",
    ),
    "database-unavailable": ProblemType(
        (503,),
        "The control database did not answer",
        "It is locked, full, restarting or out of reach. Nothing was changed.",
        "Send the request again after the seconds in Retry-After; with an Idempotency-Key it happens once.",
    ),
    "forbidden": ProblemType(
        (403,),
        "Your role does not allow this",
        "The credentials are valid, but their role does not allow the call.",
        "Use a key with the role named in `remedy`, or ask an admin for one.",
        _DENIED,
    ),
    "host-not-allowed": ProblemType(
        (422,),
        "Connections to this host are not allowed",
        "The host, or an address that its name resolves to, is internal to a machine or not among those "
        "that the operator allows; or a property names it in a way that not all programs read alike.",
        "If it is meant, add it to ICESTREAM_ALLOWED_HOSTS and start the service again, unless `detail` says "
        "that a property has to be corrected.",
        {"host": "the host that was refused", "setting": "what would allow it"},
    ),
    "delivery-not-found": ProblemType(
        (404,),
        "No such delivery",
        "The webhook has no delivery of this id, or it was too old to be kept.",
        "List them: GET /api/v1/webhooks/{id}/deliveries.",
    ),
    "host-unknown": ProblemType(
        (502,),
        "The host name can't be resolved",
        "There is no address for a host that a catalog names.",
        "Check the spelling, and the name server of the machine that the service runs on.",
    ),
    "event-not-understood": ProblemType(
        (422,),
        "The event is not understood",
        "The body is no event of an object store or catalog that is known, or does not say what changed.",
        "Send the event as the store or the catalog makes it, or name tables or files instead.",
    ),
    "erasure-not-found": ProblemType(
        (404,), "No such erasure", "No erasure has this id.", "List them: GET /api/v1/erasures."
    ),
    "erasures-not-set-up": ProblemType(
        (409,),
        "Erasures are not set up",
        "The service lacks the secrets that keep what was erased secret, and that sign receipts.",
        "Set ICESTREAM_ERASURE_SECRET and ICESTREAM_RECEIPT_SECRET, and start the service again.",
    ),
    "http-error": ProblemType(
        (),
        "The request failed",
        "The server refused the request before any call was reached; the status says more.",
        "Check the request against /docs.",
    ),
    "idempotency-key-reused": ProblemType(
        (422,),
        "This Idempotency-Key belongs to another request",
        "The key was sent before with another path, query or body.",
        "Send a new key with a new request.",
    ),
    "index-in-use": ProblemType(
        (409,),
        "The index is in use",
        "The same branch of the same Iceberg table is enrolled under another name, with the same index.",
        "Remove this enrolment without dropping the index; drop it with the last one.",
        {"table_id": "the other enrolment"},
    ),
    "index-inside-table": ProblemType(
        (422,),
        "The index must lie outside the table",
        "Iceberg's removal of orphan files would delete an index inside the table's location.",
        "Set another index_warehouse on the catalog, or ICESTREAM_INDEX_WAREHOUSE.",
    ),
    "index-left-behind": ProblemType(
        (409,),
        "Indexes would be left behind",
        "No job looks at an earlier index warehouse again: keys that are erased would stay in its indexes.",
        "Remove the tables with their indexes (drop_index), wait for these jobs, and enroll them again.",
    ),
    "index-place-not-supported": ProblemType(
        (422,),
        "An index can't lie there",
        "The index needs a store on which one of two commits at the same time fails, and deletions work.",
        "Give a place on a file system, S3 (with conditional writes, in no bucket of S3 Tables), Google Cloud"
        " Storage or Azure (abfss).",
    ),
    "internal-error": ProblemType(
        (500,),
        "Something went wrong in the service",
        "This is a defect of the service. Its log has the details under the request id.",
        "Try again; if it stays, report the request id.",
    ),
    "invalid-api-key": ProblemType(
        (401,),
        "This API key is not valid",
        "The key is unknown, revoked or expired.",
        "Check the key, or ask an admin for a new one.",
    ),
    "invalid-arrow": ProblemType(
        (422,),
        refusals.INVALID_ARROW.title,
        "The body is said to be an Arrow IPC stream and is none, has no key or more than 10,000, or has "
        "dictionaries, compression or columns within columns.",
        refusals.INVALID_ARROW.remedy,
    ),
    "invalid-cursor": ProblemType(
        (400,),
        "The cursor is not one of ours",
        "The cursor cannot be read.",
        "Use next_cursor of the previous answer unchanged, or leave it out to start again.",
    ),
    "invalid-idempotency-key": ProblemType(
        (422,),
        "The Idempotency-Key cannot be used",
        "A key has 1 to 255 characters.",
        "Send a UUID, a new one for each request that is meant to happen once.",
    ),
    "invalid-key": ProblemType(
        (422,),
        refusals.INVALID_KEY.title,
        "A key lacks a column, has one too many, or holds what is no value of the column's type.",
        refusals.INVALID_KEY.remedy,
    ),
    "invalid-key-set": ProblemType(
        (422,),
        "A declared key does not fit the table",
        "A column of key_sets is not in the table, or is named twice.",
        "Name columns of the table, which `detail` lists; nested fields are written with dots.",
    ),
    "invalid-last-event-id": ProblemType(
        (422,),
        "Last-Event-ID is not one of ours",
        "It is not the number of an event.",
        "Send the id of the last event that was received, or leave the header out to start now.",
    ),
    "invalid-token": ProblemType(
        (401,),
        "This token is not valid",
        "It is not signed by a key of the issuer, not meant for this service, or not valid now.",
        "Get a new token from the issuer, for the audience in ICESTREAM_OIDC_AUDIENCE.",
    ),
    "issuer-unavailable": ProblemType(
        (503,),
        "The issuer of the token did not answer",
        "The token can't be checked without the issuer's keys.",
        "Send the request again after the seconds in Retry-After, or use an API key.",
    ),
    "job-already-queued": ProblemType(
        (409,),
        "Such a job is already queued with other parameters",
        "A table has at most one job of a kind that waits for its first attempt.",
        "Wait for that job, or cancel it and request yours again.",
        {"job_id": "the job that waits"},
    ),
    "job-not-cancelable": ProblemType(
        (409,), "The job has ended", "Only queued and running jobs can be cancelled.", "Nothing to do."
    ),
    "job-not-found": ProblemType(
        (404,), "No such job", "No job has this id.", "List them: GET /api/v1/jobs."
    ),
    "job-not-retryable": ProblemType(
        (409,),
        "Only failed and cancelled jobs can be retried",
        "The job waits, runs or has succeeded.",
        "Request a new job: POST /api/v1/tables/{id}/jobs.",
    ),
    "key-not-supported": ProblemType(
        (422,),
        "Deletes by this key cannot be converted",
        "Equality deletes of the table compare floating-point numbers, about which engines disagree.",
        "Give the writer a key without such columns; its delete files stay, and others are converted.",
    ),
    "location-not-absolute": ProblemType(
        (422,),
        "The location is not absolute",
        "A relative path leads each process to a different place.",
        "Give an absolute path or a URI, such as file:///data/warehouse or s3://bucket/warehouse.",
    ),
    "location-not-allowed": ProblemType(
        (422,),
        "The location is outside the allowed places",
        "Catalogs, tables and indexes lie in the data directory or under ICESTREAM_ALLOWED_LOCATIONS, "
        "and so do the targets of links. Ambiguous spellings are refused, and so are the "
        "service's own files.",
        "Add its prefix to ICESTREAM_ALLOWED_LOCATIONS and start the service again, or spell it plainly.",
        {"location": "the place that was refused", "setting": "what would allow it"},
    ),
    "login-link-invalid": ProblemType(
        (401,),
        "This login link no longer works",
        "A login link is good for one login within ten minutes.",
        "Run `icestream login-link` on the machine of the service for a new one, or sign in with an API key.",
    ),
    "lookup-failed": ProblemType(
        (409,),
        "The keys cannot be looked up",
        "The table, its index or a file that the answer needs is not as it must be; `detail` names it.",
        "Do what `remedy` says; the table's health and its last jobs tell more.",
    ),
    "lookups-not-set-up": ProblemType(
        (409,),
        "Lookups are not set up",
        "The service has no lookup servers.",
        "Start `icestream lookup`, and give the service its address as ICESTREAM_LOOKUP_URL, and its token.",
    ),
    "lookups-busy": ProblemType(
        (503,),
        refusals.BUSY.title,
        "They have as many questions at once as they take, or no memory left for another one, or the answers "
        "that are being sent are too large together.",
        refusals.BUSY.remedy,
    ),
    "lookups-unavailable": ProblemType(
        (503,),
        "No lookup server is available",
        "None can be reached, or what answers has another version or token; `detail` says more.",
        "See whether `icestream lookup` runs where ICESTREAM_LOOKUP_URL says, with the same token, and what "
        "its log says.",
    ),
    "malformed-request": ProblemType(
        (400,),
        "The request cannot be read",
        "The body or the address is not what HTTP and JSON allow: `detail` says where.",
        "Correct the request; /docs describes every call.",
    ),
    "method-not-allowed": ProblemType(
        (405,),
        "The method is not allowed for this path",
        "The path exists, but only for other methods.",
        "Use one of the methods in the header Allow.",
    ),
    "missing-property": ProblemType(
        (422,),
        "The catalog needs more properties",
        "A catalog of this type needs properties that were not given.",
        "Add those named in `detail` under `properties`.",
    ),
    "namespace-not-found": ProblemType(
        (422,),
        "The catalog has no such namespace",
        "The catalog answers, but has no namespace of that name.",
        "Name one that the catalog's check shows, or leave it out.",
    ),
    "no-dry-run": ProblemType(
        (422,),
        "This kind of job has no dry run",
        "Only conversions, publications, maintenance of the table and verifications can do without changing "
        "anything.",
        "Leave dry_run out, or request a dry run of `convert`, `publish`, `expire_snapshots`, "
        "`rewrite_data_files`, `rewrite_position_delete_files`, `rewrite_manifests`, `remove_orphan_files` "
        "or `verify`.",
        _ERRORS,
    ),
    "no-staging-branch": ProblemType(
        (422,),
        "No staging branch is named",
        "A publication takes what a staging branch has to the table's branch, and neither enrolment nor "
        "policy names one, or that branch itself is named.",
        "Name the branch that the writer commits to with the enrolment (`publish`), or in the policy.",
        _ERRORS,
    ),
    "no-role": ProblemType(
        (403,),
        "The token grants no role here",
        "The token is valid, but nothing in its role claim is mapped to a role.",
        "Ask an admin to map it in ICESTREAM_OIDC_ROLES, or your issuer to put you into a mapped group.",
        {"principal": "whom the token belongs to, as in the audit log"},
    ),
    "not-acceptable": ProblemType(
        (406,),
        "No answer comes in this type",
        "The header Accept names neither what the call answers with nor */*.",
        "Accept application/json or application/vnd.apache.arrow.stream.",
    ),
    "not-covered": ProblemType(
        (409,),
        refusals.NOT_COVERED.title,
        "More rows would have to be scanned than one question may scan, and no answer is given in part.",
        refusals.NOT_COVERED.remedy,
    ),
    "not-found": ProblemType(
        (404,),
        "Not found",
        "No call has this path.",
        "Check the path; /docs lists every call.",
    ),
    "not-ready": ProblemType(
        (503,),
        "Not ready",
        "The database cannot be used, or is not migrated.",
        "See the service's log; it tries again on its own.",
    ),
    "notification-sender-exists": ProblemType(
        (409,),
        "A sender of that name already exists",
        "Names of senders of notifications are unique.",
        "Choose another name, or delete the existing sender.",
    ),
    "notification-sender-not-found": ProblemType(
        (404,),
        "No such sender",
        "No sender of notifications has the id in the path.",
        "List them: GET /api/v1/notification-senders.",
    ),
    "nothing-to-replay": ProblemType(
        (422,),
        "Too little is known of the table",
        "A policy is tried on what was kept of a table's last seven days: one look at it at least.",
        "Try again once the table was looked at, and something was written to it.",
    ),
    "orphans-not-listed": ProblemType(
        (422,),
        "A removal of orphan files goes by a dry run",
        "Only files that a dry run of the table has listed in the last 7 days are deleted, by a request that "
        "names it.",
        "Request a dry run, look at what it lists, and name it (`dry_run_job_id`).",
        _ERRORS,
    ),
    "out-of-scope": ProblemType(
        (403,),
        "The scopes of this key do not allow this",
        "The API key is valid, but was made for other parts of the API.",
        "Use a key with the scope named in `remedy`, or one without scopes.",
        _DENIED,
    ),
    "out-of-time": ProblemType(
        (503,),
        refusals.OUT_OF_TIME.title,
        "What it needs could not be read in time.",
        refusals.OUT_OF_TIME.remedy,
    ),
    "pattern-not-found": ProblemType(
        (404,), "No such pattern", "No standing pattern has this id.", "List them: GET /api/v1/patterns."
    ),
    "paused": ProblemType(
        (409,),
        "Nothing starts while paused",
        "The table, its catalog or the whole system is paused.",
        "Resume it, then request the job.",
    ),
    "policy-built-in": ProblemType(
        (409,),
        "Built-in policies stay as they are",
        "`standard` and `manual` cannot be changed or deleted.",
        "Create a policy with the values that differ, and attach that.",
    ),
    "policy-contradiction": ProblemType(
        (422,),
        "The policy contradicts what is inherited",
        "Together with what tables inherit, the values of the policy make no sense.",
        "Correct the fields listed under `errors`, or attach the policy elsewhere.",
        _ERRORS,
    ),
    "policy-out-of-bounds": ProblemType(
        (422,),
        "The policy asks for more than the operator allows",
        "Settings of the service bound what a policy may give to a job.",
        "Ask for less, or let the operator allow more.",
        _ERRORS,
    ),
    "policy-elsewhere": ProblemType(
        (422,),
        "The policy does not hold for the table",
        "Settings are tried in the place of a policy that reaches the table: one that is attached to it, its "
        "namespace, its catalog or the system.",
        "Name a table that the policy holds for, or no policy.",
    ),
    "policy-exists": ProblemType(
        (409,),
        "A policy of that name already exists",
        "Names of policies are unique.",
        "Choose another name, or PATCH the existing policy.",
    ),
    "policy-in-use": ProblemType(
        (409,),
        "The policy is attached",
        "A policy stays as long as it is attached anywhere or a pattern gives it to tables.",
        "Attach another policy at the places in `detail` first: PUT /api/v1/policy-attachments; give the "
        "patterns another one: PATCH /api/v1/patterns/{id}.",
    ),
    "policy-not-found": ProblemType(
        (404, 422),
        "No such policy",
        "No policy has this name or id: 404 if the path names it, 422 if the body does.",
        "List them: GET /api/v1/policies.",
    ),
    "precondition-required": ProblemType(
        (428,),
        "If-Match is missing",
        "A PATCH without If-Match could overwrite somebody else's change. PUT and DELETE need not have it.",
        "GET the resource, and send its ETag as If-Match (or `*` to overwrite anything).",
    ),
    "property-not-allowed": ProblemType(
        (422,),
        "This catalog property is not allowed",
        "The property would run code, read files of the service or name its own secrets.",
        "Leave it out; `detail` says which.",
    ),
    "replay-busy": ProblemType(
        (503,),
        "Others try policies",
        "One policy is tried at a time, since that takes a processor for a second or so.",
        "Send the request again in some seconds.",
    ),
    "report-of-other-keys": ProblemType(
        (422,),
        "The report is about other keys",
        "The report of an erasure counts as many keys as the job was given; this one does not.",
        "The worker ends the attempt as failed. Use a worker of the service's own version.",
    ),
    "row-addresses-out-of-range": ProblemType(
        (422,),
        "These row addresses are out of range",
        "The index of a table has 2^62 row addresses, each of which is used once; the range that was asked "
        "for goes beyond the last, or begins more than 2^44 above all that were reserved before.",
        "Rebuild the table's index, whose files have impossible row addresses.",
    ),
    "rows-not-kept": ProblemType(
        (409,),
        "The rows of this job are not kept",
        "A job that writes rows by key keeps them until it has ended, and no longer.",
        "Send the rows again as a new job.",
    ),
    "secret-in-clear": ProblemType(
        (422,),
        "A secret must not be stored in clear",
        "Secrets among the properties are references, which are resolved where they are used.",
        "Write `env:NAME` or `file:/path` instead of the secret.",
    ),
    "secret-not-allowed": ProblemType(
        (422,),
        "This secret may not be used",
        "A reference names a variable or file that the operator has not allowed.",
        "Add it to ICESTREAM_ALLOWED_SECRETS and start the service again.",
        {"setting": "what would allow it"},
    ),
    "secret-unavailable": ProblemType(
        (422,),
        "A secret cannot be resolved",
        "The environment variable or file that a property refers to does not exist.",
        "Set it for the service, one of a catalog also for its workers, then start them again.",
    ),
    "signature-invalid": ProblemType(
        (401,),
        "The signature is not valid",
        "No sender of this id has signed the request, or not within the last five minutes.",
        "Compare the sender's id, its secret and the clocks of both machines.",
    ),
    "stale-attempt": ProblemType(
        (409,),
        "This attempt no longer runs the job",
        "Another attempt took over, or the job has ended: what this one reports changes nothing.",
        "Stop the attempt and claim new work.",
        {"job_status": "of the job now", "current_attempt": "number of the job's latest attempt"},
    ),
    "store-unavailable": ProblemType(
        (503,),
        refusals.STORE_UNAVAILABLE.title,
        "A lookup server can't read the files of the table, or of its index.",
        refusals.STORE_UNAVAILABLE.remedy,
    ),
    "system-needs-policy": ProblemType(
        (422,),
        "The system always has a policy",
        "Without one, values would have no source.",
        "Attach `manual` if nothing should start on its own.",
    ),
    "table-changed": ProblemType(
        (503,),
        refusals.TABLE_CHANGED.title,
        "What the question is about was replaced while it was being answered, and again on the second try.",
        refusals.TABLE_CHANGED.remedy,
    ),
    "table-ambiguous": ProblemType(
        (422,),
        "Several tables have this name",
        "Tables of several catalogs, or several branches of one table, are enrolled by this name.",
        "Give the ids of those that are meant, or their catalog.",
    ),
    "staging-branch-in-use": ProblemType(
        (409,),
        "Another enrolment has this branch",
        "A staging branch is published by one enrolment, and converted by none: what one takes off the "
        "branch, the other could not find any more.",
        "Remove one of the two enrolments, or let it publish another branch.",
        {"table_id": "the other enrolment"},
    ),
    "sort-order-missing": ProblemType(
        (422,),
        "There is no order to sort by",
        "Data files are to be written anew with their rows sorted, but neither the request nor the table, as "
        "the last look found it, has a sort order.",
        "Name a `sort_order`, give the table one (ALTER TABLE ... WRITE ORDERED BY) and ask again after the "
        "next look, or choose `binpack`.",
        _ERRORS,
    ),
    "staged-rows-left": ProblemType(
        (409,),
        "What is staged is not published yet",
        "Without the enrolment, or the staging branch in enrolment or policy, nobody looks at what it has "
        "any more: readers would never see these rows, and their snapshots would stay.",
        "Request a job of kind publish and wait for it; or change it all the same (`leave_staged`), and drop "
        "the branch once nobody needs its rows.",
        {
            "staged_snapshots": "how many are known to wait",
            "staged_rows": "how many rows and row-level deletes these have",
        },
    ),
    "table-exists": ProblemType(
        (409,),
        "The table is already enrolled",
        "A branch of a table is enrolled once.",
        "Use the enrolment that is there.",
        {"table_id": "the enrolment that is there"},
    ),
    "table-not-enrolled": ProblemType(
        (404, 422),
        "No such table",
        "No enrolled table has this id or name: 404 if the path names it, 422 if the body does.",
        "List them: GET /api/v1/tables; or enrol it: POST /api/v1/tables.",
    ),
    "table-not-found": ProblemType(
        (422,),
        refusals.NO_TABLE,
        "The catalog answers, but does not know the table.",
        "Correct the identifier; `nearest` has names like it.",
        {
            "nearest": "tables with names like it",
            "catalog_names": "names of other catalogs in the same database, one of which may be meant",
        },
    ),
    "table-unreadable": ProblemType(
        (422,),
        "The table's metadata cannot be read",
        "The catalog knows the table, but its metadata is missing, damaged, encrypted or of an unknown "
        "version.",
        "Look at what `detail` says of the metadata file.",
    ),
    "too-many-matches": ProblemType(
        (422,),
        "The pattern matches too many tables",
        "One request enrols 200 tables at most, or erases from 100, since others wait meanwhile.",
        "Narrow it. A standing pattern enrols tables little by little (`POST /patterns`), too.",
        {"matched": "how many tables it matches"},
    ),
    "too-many-requests": ProblemType(
        (429,),
        "Too many requests",
        "You called, asked about keys, or failed to sign in from your address, more often in a minute than"
        " the settings allow; or too many questions of yours about keys are under way.",
        "Wait for the seconds in Retry-After. Scripts that wait for a job can follow /api/v1/events instead.",
        {"retry_after_seconds": "the same as in Retry-After"},
    ),
    "too-many-windows": ProblemType(
        (422,),
        "The policy has too many windows",
        "Every decision looks at each window, so a policy has 50 at most.",
        "Merge windows: one may cover several days, and begin on one day and end on the next.",
        _ERRORS,
    ),
    "too-many-writes": ProblemType(
        (409,),
        "Too many writes to this table are waiting",
        "At most 100 jobs that write rows may wait for a table, since each keeps its rows until it ends.",
        "Wait until some have ended, and send more rows at once.",
    ),
    "unauthenticated": ProblemType(
        (401,),
        "Credentials are missing",
        "The call needs credentials, and there were none.",
        "Send `Authorization: Bearer <key>`, or sign in at /login.",
    ),
    "unknown-columns": ProblemType(
        (422,),
        refusals.UNKNOWN_COLUMNS.title,
        "A selected column is not in the schema that is read: of a branch the table's, else the snapshot's.",
        refusals.UNKNOWN_COLUMNS.remedy,
    ),
    "unknown-key-columns": ProblemType(
        (422,),
        refusals.UNKNOWN_KEY_COLUMNS.title,
        "The key columns are not in the table's schema, or it has several key sets, or none yet.",
        refusals.UNKNOWN_KEY_COLUMNS.remedy,
    ),
    "unknown-snapshot": ProblemType(
        (404,),
        refusals.UNKNOWN_SNAPSHOT.title,
        "The snapshot has expired or never was, or there is no such branch or tag.",
        refusals.UNKNOWN_SNAPSHOT.remedy,
    ),
    "uri-not-supported": ProblemType(
        (422,),
        "The uri does not fit this type of catalog",
        "The scheme of `uri` does not fit the type of the catalog, or it names no host.",
        "Correct `uri`; `detail` says what it may be.",
    ),
    "unsupported-media-type": ProblemType(
        (415,),
        "The body has an unsupported type",
        "The header Content-Type names neither of the types in which keys are read.",
        "Send application/json or application/vnd.apache.arrow.stream, and say which.",
    ),
    "unusable-value": ProblemType(
        (422,),
        "A value cannot be stored",
        "Some text has a NUL character or half of a surrogate pair, or a number is not finite or too large.",
        "Send text without these, and finite numbers of 64 bits at most.",
    ),
    "validation-error": ProblemType(
        (422,),
        "The request is not valid",
        "Parameters or body do not fit what the call takes.",
        "Correct the fields listed under `errors`; /docs describes every call.",
        _ERRORS,
    ),
    "version-conflict": ProblemType(
        (412,),
        "It has been changed in the meantime",
        "If-Match names a version that is not the current one.",
        "GET it again, repeat the change, and send the new ETag.",
    ),
    "webhook-disabled": ProblemType(
        (409,),
        "The webhook is switched off",
        "Nothing is sent to it.",
        "Switch it on: PATCH it with `enabled` true.",
    ),
    "webhook-exists": ProblemType(
        (409,),
        "A webhook of that name already exists",
        "Names of webhooks are unique.",
        "Choose another name, or PATCH the existing webhook.",
    ),
    "webhook-not-found": ProblemType(
        (404,), "No such webhook", "No webhook has the id in the path.", "List them: GET /api/v1/webhooks."
    ),
    "webhook-secret-unusable": ProblemType(
        (422,),
        "The secret can't be used to sign",
        "The secret that a webhook refers to is not `whsec_` and 24 to 64 bytes in base64.",
        "Make one as `detail` says, and put it where the reference points to.",
    ),
    "webhook-url-not-supported": ProblemType(
        (422,),
        "The url can't be used for a webhook",
        "It has to be an http or https URL with a host, without a user or a fragment.",
        "Correct it, such as https://hooks.example/icestream.",
    ),
    "worker-not-found": ProblemType(
        (404,),
        "No such worker",
        "No worker has this id, or it was forgotten.",
        "Register again: POST /api/v1/workers. Workers do so on their own.",
    ),
    "worker-not-yours": ProblemType(
        (403,),
        "This worker belongs to somebody else",
        "A worker, with its attempts, belongs to the key or the issuer's subject that registered it.",
        "Use the key that registered it, or register a worker of your own: POST /api/v1/workers.",
        _DENIED,
    ),
}

_HEAD = """# Problems

<!-- Written by `python -m service.problems`. -->

Every failed call answers with a problem document (RFC 9457, `application/problem+json`):

| field | |
|---|---|
| `type` | which of the problems below it is: it never changes, and the service explains it at that address |
| `title` | the same in words |
| `status` | the HTTP status |
| `detail` | what happened this time |
| `remedy` | what to do about it |
| `instance` | the path that was called |
| `request_id` | as in the answer's header X-Request-ID, in the log and in the audit log |

Some have further fields, named below. Programs go by `type`; texts may change.

| type | status | means | what to do | further fields |
|---|---|---|---|---|
"""


def render() -> str:
    """docs/errors.md as it is checked in."""
    rows = []
    for slug, problem in sorted(PROBLEMS.items()):
        status = ", ".join(str(status) for status in problem.status) or "4xx"
        extra = "; ".join(f"`{name}`: {words}" for name, words in problem.fields.items())
        cells = (
            f"`{PROBLEM_PATH}{slug}`",
            status,
            f"**{problem.title}.** {problem.meaning}".replace("?.**", "?**"),
            problem.remedy,
            extra,
        )
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(render())
