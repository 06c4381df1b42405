package relaybench

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/starling-kv/starling/bench/harness"
)

// Lines of a node's log, as CometBFT writes them in plain text (consensus/state.go).
var (
	proposalLine = regexp.MustCompile(`^I\[([^\]]*)\] received proposal .*Proposal\{(\d+)/(\d+) \([0-9A-F]*:(\d+):`)
	completeLine = regexp.MustCompile(`^I\[([^\]]*)\] received complete proposal block .*height=(\d+)`)
)

const logTime = "2006-01-02|15:04:05.000"

// seen has the times of a block in a node's log.
type seen struct {
	proposal, complete time.Time // zero: not in the log
	parts              int
}

// readLog returns the times of each height in a log. For a height with several rounds, it returns
// the last.
func readLog(path string) (map[int64]seen, error) {
	content, err := os.ReadFile(path) //nolint:gosec // written by this run
	if err != nil {
		return nil, err
	}
	return parseLog(string(content))
}

func parseLog(content string) (map[int64]seen, error) {
	heights := map[int64]seen{}
	for line := range strings.Lines(content) {
		if m := proposalLine.FindStringSubmatch(line); m != nil {
			at, err := time.Parse(logTime, m[1])
			if err != nil {
				return nil, fmt.Errorf("parsing the time of a log line: %w", err)
			}
			parts, err := strconv.Atoi(m[4])
			if err != nil {
				return nil, err
			}
			heights[number(m[2])] = seen{proposal: at, parts: parts}
		} else if m := completeLine.FindStringSubmatch(line); m != nil {
			at, err := time.Parse(logTime, m[1])
			if err != nil {
				return nil, fmt.Errorf("parsing the time of a log line: %w", err)
			}
			s := heights[number(m[2])]
			s.complete = at
			heights[number(m[2])] = s
		}
	}
	return heights, nil
}

// number parses digits matched by a pattern.
func number(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

// spreads returns the times, in ms, of the blocks above a height that have at least leastParts
// parts: from the first node's proposal, which is the proposer's, to the last node's last part.
func spreads(logs []map[int64]seen, above int64, leastParts int) (ms []float64) {
	for height, first := range logs[0] {
		if height <= above || first.parts < leastParts {
			continue
		}
		from, to, all := first.proposal, first.complete, true
		for _, log := range logs {
			s := log[height]
			if s.proposal.IsZero() || s.complete.IsZero() {
				all = false
				break
			}
			if s.proposal.Before(from) {
				from = s.proposal
			}
			if s.complete.After(to) {
				to = s.complete
			}
		}
		if all {
			ms = append(ms, float64(to.Sub(from).Microseconds())/1e3)
		}
	}
	return ms
}

// worth returns the blocks above a height in units of the largest block in the log, by their parts.
// A block of one part is empty: a validator without transactions proposed it.
func worth(log map[int64]seen, above int64) float64 {
	largest, sum := 0, 0
	for height, b := range log {
		largest = max(largest, b.parts)
		if height > above && b.parts > 1 && !b.complete.IsZero() {
			sum += b.parts
		}
	}
	return harness.Ratio(float64(sum), float64(largest))
}
