/*
 * session_states.c: where a session keeps models on their way from one pass to the next.
 *
 * In its memory alone: passed as a parameter of the next statement they would be in the server's log when statements are
 * logged, and in a table they would be on disk. Behind a pooler a session has one user after another, so what is kept
 * is for the session user and the current user who kept it and for nobody else; it goes with the transaction that kept it
 * if that is aborted, and with DISCARD ALL, DISCARD TEMP and a change of the session user. A session keeps
 * boltdp.max_state_memory at most.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"

PGDLLEXPORT void _PG_init(void);

typedef struct SessionState
{
	int64		handle;			/* the key */
	Oid			session_user;	/* whose they are */
	Oid			current_user;
	SubTransactionId kept_in;	/* of the transaction that runs, 0 if an earlier one kept them */
	bytea	   *models;
} SessionState;

static HTAB *session_states;
static Size kept_bytes = 0;
static int	max_state_memory;	/* in MB: a role must not fill the server's memory with states */
static ProcessUtility_hook_type next_utility = NULL;

/* What a state takes, small ones too. */
static Size
KeptSize(const bytea *models)
{
	return VARSIZE(models) + 2 * sizeof(SessionState);
}

/* Overwrite a state, and remove it. */
static void
RemoveState(SessionState *entry)
{
	bytea	   *models = entry->models;

	hash_search(session_states, &entry->handle, HASH_REMOVE, NULL);
	kept_bytes -= KeptSize(models);
	explicit_bzero(models, VARSIZE(models));
	pfree(models);
}

/* Remove the states that were put in a subtransaction, or, for 0, in any transaction. */
static void
RemoveStates(SubTransactionId kept_in)
{
	HASH_SEQ_STATUS scan;
	SessionState *entry;

	hash_seq_init(&scan, session_states);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (kept_in == InvalidSubTransactionId || entry->kept_in == kept_in)
			RemoveState(entry);
}

/* From here on states of one subtransaction are those of another, or, for 0, of an earlier transaction. */
static void
MoveStates(SubTransactionId from, SubTransactionId to)
{
	HASH_SEQ_STATUS scan;
	SessionState *entry;

	hash_seq_init(&scan, session_states);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (entry->kept_in == from)
			entry->kept_in = to;
}

/* Its subtransactions have ended before, and their states were moved to it or removed. */
static void
AtTransactionEnd(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE)
		MoveStates(TopSubTransactionId, InvalidSubTransactionId);
	else if (event == XACT_EVENT_ABORT)
		RemoveStates(TopSubTransactionId);
}

static void
AtSubtransactionEnd(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		MoveStates(mine, parent);
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		RemoveStates(mine);
}

/* A session that is handed on to someone else gets a statement to discard what it has, or to change the user. */
static void
ProcessUtilityStatement(PlannedStmt *planned, const char *query, bool read_only, ProcessUtilityContext context,
						ParamListInfo params, QueryEnvironment *environment, DestReceiver *destination,
						QueryCompletion *completion)
{
	Node	   *statement = planned->utilityStmt;
	bool		ends = false;

	if (IsA(statement, DiscardStmt))
	{
		DiscardMode target = ((DiscardStmt *) statement)->target;

		ends = target == DISCARD_ALL || target == DISCARD_TEMP;
	}
	else if (IsA(statement, VariableSetStmt))
	{
		const char *name = ((VariableSetStmt *) statement)->name;

		ends = name != NULL && strcmp(name, "session_authorization") == 0;
	}
	/* Before it is run: whether or not it succeeds, it is meant to be the end. */
	if (ends)
		RemoveStates(InvalidSubTransactionId);
	if (next_utility != NULL)
		next_utility(planned, query, read_only, context, params, environment, destination, completion);
	else
		standard_ProcessUtility(planned, query, read_only, context, params, environment, destination, completion);
}

void
_PG_init(void)
{
	HASHCTL		control = {.keysize = sizeof(int64), .entrysize = sizeof(SessionState)};

	session_states = hash_create("boltdp models", 16, &control, HASH_ELEM | HASH_BLOBS);
	DefineCustomIntVariable("boltdp.max_state_memory", "Sets the memory in which a session may keep states.", NULL,
							&max_state_memory, 1024, 1, 1024 * 1024, PGC_SUSET, GUC_UNIT_MB, NULL, NULL, NULL);
	next_utility = ProcessUtility_hook;
	ProcessUtility_hook = ProcessUtilityStatement;
	RegisterXactCallback(AtTransactionEnd, NULL);
	RegisterSubXactCallback(AtSubtransactionEnd, NULL);
}

/* What is kept under a handle, if it is the caller's. */
static SessionState *
FindState(int64 handle)
{
	SessionState *entry = hash_search(session_states, &handle, HASH_FIND, NULL);

	if (entry == NULL || entry->session_user != GetSessionUserId() || entry->current_user != GetUserId())
		return NULL;
	return entry;
}

/* The models under a handle, NULL if there are none, or someone else's. */
PG_FUNCTION_INFO_V1(boltdp_get_state);
Datum
boltdp_get_state(PG_FUNCTION_ARGS)
{
	SessionState *entry = FindState(PG_GETARG_INT64(0));

	if (entry == NULL)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(PointerGetDatum(PG_DETOAST_DATUM_COPY(PointerGetDatum(entry->models))));
}

/* Remove the models under a handle; whether there were any. */
PG_FUNCTION_INFO_V1(boltdp_drop_state);
Datum
boltdp_drop_state(PG_FUNCTION_ARGS)
{
	SessionState *entry = FindState(PG_GETARG_INT64(0));

	if (entry == NULL)
		PG_RETURN_BOOL(false);
	RemoveState(entry);
	PG_RETURN_BOOL(true);
}

/* Keep a copy of the models under a handle, which replaces any that are there. */
static void
PutState(int64 handle, bytea *models)
{
	SessionState *entry = hash_search(session_states, &handle, HASH_FIND, NULL);
	bytea	   *copy;

	if (kept_bytes - (entry == NULL ? 0 : KeptSize(entry->models)) + KeptSize(models) >
		(Size) max_state_memory * 1024 * 1024)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a session must not keep more than %d MB of states", max_state_memory),
				 errhint("boltdp.drop_state removes a state, DISCARD TEMP all of them; a superuser may set"
						 " boltdp.max_state_memory.")));
	copy = MemoryContextAllocHuge(TopMemoryContext, VARSIZE(models));
	memcpy(copy, models, VARSIZE(models));
	if (entry != NULL)
		RemoveState(entry);
	entry = hash_search(session_states, &handle, HASH_ENTER, NULL);
	entry->models = copy;
	kept_bytes += KeptSize(copy);
	entry->session_user = GetSessionUserId();
	entry->current_user = GetUserId();
	entry->kept_in = GetCurrentSubTransactionId();
}

/* Keep models under a handle, and return them. */
PG_FUNCTION_INFO_V1(boltdp_put_state);
Datum
boltdp_put_state(PG_FUNCTION_ARGS)
{
	bytea	   *models = PG_GETARG_BYTEA_P(1);

	PutState(PG_GETARG_INT64(0), models);
	PG_RETURN_BYTEA_P(models);
}

/*
 * Keep what is inserted into the view boltdp.inbox. COPY brings it there: unlike a parameter, its data is in no log, and
 * a view has nowhere to store it.
 */
PG_FUNCTION_INFO_V1(boltdp_receive);
Datum
boltdp_receive(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2];

	/* Anyone may make a trigger of this function, on a view with any columns. */
	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_INSTEAD(data->tg_event) || !TRIGGER_FIRED_BY_INSERT(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("boltdp.receive must be called by a trigger INSTEAD OF INSERT")));
	desc = RelationGetDescr(data->tg_relation);
	if (desc->natts != 2 || TupleDescAttr(desc, 0)->atttypid != INT8OID || TupleDescAttr(desc, 1)->atttypid != BYTEAOID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("boltdp.receive must be called for a view of a bigint and a bytea")));
	heap_deform_tuple(data->tg_trigtuple, desc, values, nulls);
	if (nulls[0] || nulls[1])
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("the handle and the state must not be NULL")));
	PutState(DatumGetInt64(values[0]), DatumGetByteaP(values[1]));
	return PointerGetDatum(data->tg_trigtuple);
}
