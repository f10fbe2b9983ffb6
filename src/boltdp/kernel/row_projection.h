/* row_projection.h: the projection of packed rows (sgd.h) to fewer features. */
#ifndef BOLTDP_ROW_PROJECTION_H
#define BOLTDP_ROW_PROJECTION_H

#include <stddef.h>

/*
 * Packed float32 rows of d features to packed rows of q: the label is copied, the features are scaled by the row
 * guard's factor and multiplied by the d x q matrix. Feature by feature in order, so one sum has one association.
 * A row that the guard makes neutral gets NaN features, so that it stays neutral.
 */
void project_features(const float *rows, size_t n, size_t d, const double *matrix, size_t q, float *out);

#endif
