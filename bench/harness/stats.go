package harness

import (
	"math"
	"slices"
)

// Percentile is the smallest value that at least p percent of the values do not exceed (nearest
// rank); 0 if there are none.
func Percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Median is the middle value, of an even number the lower of the two; 0 if there are none.
func Median(values []float64) float64 { return Percentile(values, 50) }
