package home

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRollbackTarget(t *testing.T) {
	for name, c := range map[string]struct {
		height, base, initial int64
		pins, pruned          []int64 // heights of snapshots, and of those without validators
		to                    int64
		ok                    bool
	}{
		"the newest":                             {height: 20, base: 1, initial: 1, pins: []int64{5, 10, 15}, to: 15, ok: true},
		"one at the height":                      {height: 20, base: 1, initial: 1, pins: []int64{10, 20}, to: 20, ok: true},
		"one directly above is not usable":       {height: 20, base: 1, initial: 1, pins: []int64{10, 21}, to: 10, ok: true},
		"its validators are pruned":              {height: 20, base: 1, initial: 1, pins: []int64{5, 10}, pruned: []int64{10}, to: 5, ok: true},
		"all validators are pruned":              {height: 20, base: 8, initial: 1, pins: []int64{10}, pruned: []int64{10}},
		"the block after it is the first stored": {height: 20, base: 11, initial: 1, pins: []int64{10}, to: 10, ok: true},
		"the block after it is pruned":           {height: 20, base: 12, initial: 1, pins: []int64{10}},
		"none, and all blocks":                   {height: 20, base: 1, initial: 1, ok: true},
		"none, and the first block is pruned":    {height: 20, base: 2, initial: 1},
		"none, and a chain that begins later":    {height: 20, base: 7, initial: 7, ok: true},
		"none, and its first block is pruned":    {height: 20, base: 8, initial: 7},
	} {
		to, ok := rollbackTarget(c.height, c.base, c.initial, c.pins, func(height int64) bool { return !slices.Contains(c.pruned, height) })
		require.Equal(t, c.ok, ok, name)
		require.Equal(t, c.to, to, name)
	}
}
