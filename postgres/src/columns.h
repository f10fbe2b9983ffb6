/* columns.h: encoding the columns of a row of PostgreSQL by a plan (columns_to_cells.h). */
#ifndef BOLTDP_COLUMNS_H
#define BOLTDP_COLUMNS_H

#include "postgres.h"

#include "fmgr.h"

/* A plan, and the types of the arguments that it is followed with. */
typedef struct Columns Columns;

/*
 * Read the plan of argument `plan`, for columns that are the arguments from `first` on, or the fields of the only one:
 * a function has no more than 100 arguments. All of it is in the current memory context.
 */
Columns    *OpenColumns(FunctionCallInfo fcinfo, int plan, int first);

/* Numbers of a packed row, with its label, as it is encoded, and once it is projected, if the plan says so. */
int			EncodedWidth(const Columns *columns);
int			PackedWidth(const Columns *columns);

/* Encode the row of this call. Nothing about a value can fail: what is missing or undeclared is a cell that says so. */
void		EncodeColumns(Columns *columns, FunctionCallInfo fcinfo, float4 *out);

/* Project encoded rows, which lie end to end, if the plan says so; return the packed rows. */
const float4 *ProjectRows(Columns *columns, const float4 *encoded, int n_rows);

/* Rows that are best projected at once; 1 if they are not. */
int			RowsAtOnce(const Columns *columns);

#endif
