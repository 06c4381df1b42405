package runner

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The kernel kills a process at the limit of its group, and none below it.
func TestMemoryGroup(t *testing.T) {
	for size, kills := range map[string]int{"1M": 0, "64M": 1} {
		t.Run(size, func(t *testing.T) {
			group, err := NewMemoryGroup("test-"+size, 16<<20)
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skipf("NOT RUN: limits of memory need root, and control groups with a writable memory controller: %v", err)
			}
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, group.Remove()) })
			p := NewProcesses(context.Background())
			t.Cleanup(func() { require.NoError(t, p.Stop(time.Minute)) })
			// dd fills one buffer of that size. A pipeline would not do: while a killed process
			// ends, the kernel may kill another one of the group that needs memory.
			process, err := p.Start(Spec{
				Name: "dd", Path: "/bin/dd", Args: []string{"if=/dev/zero", "of=/dev/null", "count=1", "bs=" + size},
				Log: filepath.Join(t.TempDir(), "log"), Memory: group, Ends: true,
			})
			require.NoError(t, err)
			require.Equal(t, kills == 0, process.ExitError() == nil)
			got, err := group.Kills()
			require.NoError(t, err)
			require.Equal(t, kills, got)
		})
	}
}
