package harness

import (
	"fmt"
	"math"
	"slices"
)

// Interval is the median of a sample and an interval that covers the true median with the given
// confidence. It assumes an independent sample, but nothing about the distribution.
type Interval struct {
	Median     float64 `json:"median"`
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Confidence float64 `json:"confidence"` // 0 … 1
}

// wanted is the minimum confidence of an interval, if the sample is large enough (6 or more).
const wanted = 0.95

// MedianInterval returns the median of a sample, and the narrowest pair of its order statistics
// that covers the true median with a probability of at least 95 %. For fewer than 6 values, it
// returns the smallest and the largest, with their actual confidence.
//
// The number of values below the true median is binomial (n, 1/2), so the k-th smallest and the
// k-th largest value enclose it with probability 1 - 2·P(X < k) (David and Nagaraja, Order
// Statistics, 7.1).
func MedianInterval(sample []float64) Interval {
	n := len(sample)
	if n == 0 {
		return Interval{}
	}
	sorted := slices.Sorted(slices.Values(sample))
	// below(k) is P(X < k).
	term, sum, best, confidence := math.Pow(0.5, float64(n)), 0.0, 0, 0.0
	for k := range (n + 1) / 2 { // the k-th value from each end, from 0
		sum += term
		if c := 1 - 2*sum; k == 0 || c >= wanted {
			best, confidence = k, max(c, 0)
		}
		term *= float64(n-k) / float64(k+1)
	}
	return Interval{
		Median: Median(sorted), Low: sorted[best], High: sorted[n-1-best], Confidence: confidence,
	}
}

// Text formats the median and the interval. format is applied to each number.
func (i Interval) Text(format string) string {
	return fmt.Sprintf(format+" ["+format+", "+format+"]", i.Median, i.Low, i.High)
}
