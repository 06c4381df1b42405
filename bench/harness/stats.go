package harness

import (
	"math"
	"slices"
)

// Percentile is the least value that p percent of values do not exceed (nearest rank); 0 of none.
func Percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Median is the middle one of values; 0 of none.
func Median(values []float64) float64 { return Percentile(values, 50) }
