/*
 * obsolete.c: functions of 0.1.0 that are no more.
 *
 * A database that was not updated still has them, and so has its update script, which begins by making 0.1.0 where that is
 * asked for: the names must be there, and must not be taken by something else.
 */
#include "postgres.h"

#include "fmgr.h"

#define OBSOLETE(NAME) \
	PG_FUNCTION_INFO_V1(NAME); \
	Datum \
	NAME(PG_FUNCTION_ARGS) \
	{ \
		ereport(ERROR, \
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), \
				 errmsg("this function belongs to an older version of the extension"), \
				 errhint("ALTER EXTENSION boltdp UPDATE brings the database up to date."))); \
	}

OBSOLETE(boltdp_pack_numbers_float4)
OBSOLETE(boltdp_pack_numbers_float8)
OBSOLETE(boltdp_pack_categories)
OBSOLETE(boltdp_project)
OBSOLETE(boltdp_pack_step)
OBSOLETE(boltdp_moments_step)
