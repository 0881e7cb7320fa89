"""What the help of commands says where the API's own description speaks of requests and their answers."""

OPERATIONS = {
    "attach_policy": "Attach a policy to the system, a catalog, a namespace or a table.",
    "create_api_key": "Make an API key. The key itself is shown this once.",
    "create_catalog": "Register a catalog. It need not be reachable yet: `catalogs check` tells.",
    "create_erasure": """\
Queue a job for each table, which deletes the rows of keys, rewrites the files that had them, expires
snapshots, and looks for the keys in all that is left.

All tables are taken, or none. Keys are kept until each job has ended, shown to nobody, and from then on as
keyed hashes alone. A dry run says which tables are meant.""",
    "create_webhook": "Make a webhook: each event of its kinds is sent there, signed, from now on.",
    "delete_table": "Forget a table, and with --drop-index its index. The Iceberg table stays as it is.",
    "enroll_by_pattern": """\
Enrol every table whose dotted name matches a pattern, up to 200; --dry-run only lists them.

For more of them, or for those that are created later, there are standing patterns:
`discovery create-pattern`.""",
    "enroll_table": """\
Enrol a table, by its name with its catalog: lake.shop.orders.

It is loaded from its catalog at once, so a wrong name is found here.""",
    "find_candidates": """\
Tell which tables of a catalog hold equality deletes: how many, how old, and by which keys they delete.

Each table is looked at, which takes its time.""",
    "follow_events": "Show events as they happen, each as a line of JSON, until Ctrl-C.",
    "get_erasure_receipt": """\
Show what has become of each key in each table, signed as webhooks are.

It is complete once all jobs have ended, and then it is the same to the byte each time.""",
    "get_overview": "Tell how all tables are doing together, and what needs attention.",
    "get_pattern": "Show one standing pattern.",
    "get_table": "Show one enrolled table.",
    "get_timeline": (
        "Show what was pending at most in a span of time, how old it was, and which jobs ran where; -o json "
        "shows it over time."
    ),
    "get_webhook": "Show one webhook.",
    "live": "Tell whether the service runs.",
    "list_audit_entries": """\
List every change that was allowed, and everything that was denied to somebody known; newest first.

What was allowed is named by what it did, such as `table.pause`.""",
    "list_erasures": "List erasures, the latest first.",
    "list_jobs": "List jobs, the latest first; --since and --until go by when they were made.",
    "list_tables": "List enrolled tables. `--sort=-status` shows those first whose health is gravest.",
    "look_up_keys": (
        "Tell where rows with given keys are, whether they are live, and what they hold; see `tables lookup`."
    ),
    "metrics": "Show figures about all tables, jobs and workers, as Prometheus reads them.",
    "ready": "Tell whether the database can be read and written and is migrated.",
    "request_job": "Queue a job. If one of its kind is queued already, that one is shown.",
    "resend_delivery": (
        "Send a delivery again, however it ended, or at once if it waits: as the same message, by its id."
    ),
    "rotate_api_key": (
        "Give a key a new secret, shown this once; the old one is good for --grace-seconds more."
    ),
    "tell_key_history": (
        "Tell what rows a key had in each of the newest snapshots, and what each snapshot did to them."
    ),
    "update_catalog": "Change some fields of a catalog; the others stay.",
    "update_pattern": "Change, pause or resume a standing pattern.",
    "update_policy": "Change a policy, its settings as a whole. That of the system takes an admin.",
    "update_table": """\
Change policy, declared keys or staging branch of a table.

Columns of new keys must be in the table. While its catalog can't be reached they are taken unseen, and the
next job that indexes tells what does not fit.""",
    "update_webhook": "Change a webhook, or switch it off or on.",
    "upsert_rows": """\
Queue a job that adds rows and deletes those of the same keys, in one commit.

Its result says what it did. Rows are kept until it has ended, and shown to nobody.""",
    "who_am_i": "Tell whom the key belongs to.",
}
"""By the operation's id."""
FIELDS = {
    "create_api_key.scopes": (
        "The key may do only what these scopes name: groups of commands, where `tables:write` includes "
        '`tables:read`; "" for all that its role may. A key with scopes cannot sign in a browser.'
    ),
    "create_api_key.tables": (
        "The key may ask for keys of these tables alone, by full names with `*` for any text, such as "
        '`lake.sales.*`; "" for all. Only for a key whose one scope is `lookups:read`.'
    ),
    "create_webhook.url": "Events are sent here. The host must be one that the operator allows.",
    "limit": "Show at most this many; without it, all.",
    "list_audit_entries.request_id": "Only what was done by the call with this id, as the log has it.",
    "max_running_jobs": "At most this many jobs of its tables run at a time.",
    "rotate_api_key.prefix": (
        "First characters of the secret to be replaced: refused if somebody was faster. Left out: any."
    ),
    "sort": "What the list is sorted by; a minus in front turns the order round.",
    "table_id": (
        "An enrolled table by its name, as lake.shop.orders, or shop.orders where that is clear; or its id."
    ),
    "update_webhook.url": "Events are sent here from now on, also those that wait.",
}
"""By the field's name, after that of its operation if it is meant for this one alone."""
