package treebench

import (
	"math"
	"slices"
)

// percentile is the least value that p percent of values do not exceed (nearest rank); 0 of none.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func median(values []float64) float64 { return percentile(values, 50) }
