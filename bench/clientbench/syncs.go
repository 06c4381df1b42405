package clientbench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Syncs are the syncs of one validator's disk during puts.
type Syncs struct {
	PerBlock float64 `json:"per_block"`
	MS       float64 `json:"ms"` // mean of one
}

func (s *Syncs) perBlock() string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", s.PerBlock)
}

func (s *Syncs) each() string {
	if s == nil {
		return "-"
	}
	return milliseconds(s.MS)
}

// countSyncs counts the syncs of the first validator while puts run, with strace. It returns nil
// where strace is missing, or may not trace.
func countSyncs(ctx context.Context, s *starling) (*Syncs, error) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // the table shows that they were not counted
	}
	var report bytes.Buffer
	pid := strconv.Itoa(s.net.Pid(s.net.Validators[0]))
	counting, end := context.WithCancel(ctx)
	defer end()
	//nolint:gosec // the process ID is that of a process of this run
	cmd := exec.CommandContext(counting, strace, "-f", "-c", "-w", "-e", "trace=fsync,fdatasync,sync_file_range",
		"-p", pid)
	cmd.Stderr = &report
	// strace then detaches and reports
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	first, err := s.believer.Status(ctx)
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("strace: %w", err)
	}
	_, putErr := s.timedPuts(ctx)
	last, err := s.believer.Status(ctx)
	end()
	_ = cmd.Wait() // it ends with a signal
	if putErr != nil {
		return nil, putErr
	}
	if err != nil {
		return nil, err
	}
	return parseSyncs(report.Bytes(), last.SyncInfo.LatestBlockHeight-first.SyncInfo.LatestBlockHeight), nil
}

// parseSyncs reads strace's table: share, seconds, µs for each call, calls, errors (may be empty)
// and the name. It returns nil if there is none.
func parseSyncs(report []byte, blocks int64) *Syncs {
	for lines := bufio.NewScanner(bytes.NewReader(report)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[len(fields)-1] != "total" {
			continue
		}
		seconds, err1 := strconv.ParseFloat(fields[1], 64)
		calls, err2 := strconv.ParseFloat(fields[3], 64)
		if err1 != nil || err2 != nil || calls == 0 || blocks <= 0 {
			return nil
		}
		return &Syncs{PerBlock: calls / float64(blocks), MS: seconds * 1e3 / calls}
	}
	return nil
}
