package harness

import (
	"math"
	"slices"
)

// Percentile returns the smallest value that is not exceeded by at least p percent of the values
// (nearest rank), or 0 without values.
func Percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Median returns the middle value, or the mean of the two middle values. It returns 0 without
// values.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// LowerMedian returns the middle value, or the lower of the two middle values. So it is one of the
// values, of a measurement whose other figures are used, too. It returns 0 without values.
func LowerMedian(values []float64) float64 { return Percentile(values, 50) }

// MedianOf returns the median of one figure of all items.
func MedianOf[T any](items []T, figure func(T) float64) float64 { return Median(Each(items, figure)) }

// Each returns one figure of each item.
func Each[T any](items []T, figure func(T) float64) []float64 {
	all := make([]float64, len(items))
	for i, item := range items {
		all[i] = figure(item)
	}
	return all
}
