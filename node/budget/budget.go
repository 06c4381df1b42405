// Package budget states what a node of a sharded network may take, one budget in bytes for each
// purpose, and compares the sum with the memory that the process has. It enforces no budget: the
// packages that hold the bytes do.
//
//	settings, constants ──► Table ──► Check: refuses a start with less memory
//	                          └─────► Metrics: each budget, and what is used of it
package budget

import (
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/node/config"
)

// Program is what a node takes in addition to the other budgets, in bytes: code, goroutines and
// connections, CometBFT, and garbage that is not collected yet. It is an estimate, not enforced.
const Program = 256 << 20

// Budget is the limit for one purpose.
type Budget struct {
	Name  string // label in metrics, in docs/reference/limits.md, and in tests
	Bytes int64
	// Used returns the bytes used now; nil: they are not counted. It may be called concurrently.
	Used func() int64
	// Disk: the bytes are on disk, not in memory.
	Disk bool
}

// Table has the budgets of a node.
type Table []Budget

// Memory returns the sum of the budgets in memory: what the node needs.
func (t Table) Memory() (sum int64) {
	for _, b := range t {
		if !b.Disk {
			sum += b.Bytes
		}
	}
	return sum
}

// Measure sets Used of a budget, which must be in the table.
func (t Table) Measure(name string, used func() int64) {
	t[slices.IndexFunc(t, func(b Budget) bool { return b.Name == name })].Used = used
}

// Check returns an error, which matches config.ErrInvalid, if the process may use less memory than
// all budgets need, or less than minimum (setting min_memory_bytes) if that is not 0. It returns
// nil if the memory cannot be determined.
func (t Table) Check(minimum int64) error {
	have, known := Available()
	if !known {
		return nil
	}
	return t.check(minimum, int64(min(have, math.MaxInt64)))
}

// mibibytes rounds up, so that a machine with as much memory as the error asks for is enough.
func mibibytes(n int64) int64 { return (n + 1<<20 - 1) >> 20 }

func (t Table) check(minimum, have int64) error {
	need := minimum
	if minimum == 0 {
		need = t.Memory()
	}
	if have >= need {
		return nil
	}
	largest := t[0]
	for _, b := range t {
		if !b.Disk && b.Bytes > largest.Bytes {
			largest = b
		}
	}
	return config.Invalid(fmt.Errorf(`this node needs %d MiB of memory, but %d MiB are available (the least of GOMEMLIMIT, control group and machine)
hint: give it more memory, or lower the settings of its budgets (docs/reference/limits.md; the largest is %s, %d MiB); with min_memory_bytes = %d the node starts anyway, and may run out of memory`,
		mibibytes(need), have>>20, largest.Name, mibibytes(largest.Bytes), have))
}

// metrics exports a table.
type metrics struct {
	table       func() Table
	limit, used *prometheus.Desc
}

var _ prometheus.Collector = (*metrics)(nil)

// NewMetrics exports the budgets of a table, and what is used of them. table is called when
// Prometheus scrapes; it may return nil.
func NewMetrics(table func() Table) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("starling", "budget", name), help, []string{"budget"}, nil)
	}
	return &metrics{
		table: table,
		limit: desc("bytes", "Limit in bytes, by purpose: of memory, or of disk space if the purpose ends in _disk."),
		used:  desc("used_bytes", "Bytes used of a limit, by purpose, where they are counted."),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.limit
	to <- m.used
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, b := range m.table() {
		to <- prometheus.MustNewConstMetric(m.limit, prometheus.GaugeValue, float64(b.Bytes), b.Name)
		if b.Used != nil {
			to <- prometheus.MustNewConstMetric(m.used, prometheus.GaugeValue, float64(b.Used()), b.Name)
		}
	}
}
