//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// The test binary runs starling-iavl if childArgs has its arguments, one per line. It kills itself
// at the event in childKill: "bytes N": the data folder, childData, has at least N bytes; "line
// TEXT": the program writes this text; "file PATTERN": the data folder has a matching file; "step
// TEXT": madeComet is called with this step. "fill TEXT" fills the disk at this step instead.
const (
	childArgs = "STARLING_TEST_ARGS"
	childKill = "STARLING_TEST_KILL"
	childData = "STARLING_TEST_DATA"
)

func TestMain(m *testing.M) {
	args := os.Getenv(childArgs)
	if args == "" {
		os.Exit(m.Run())
	}
	die := func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	var stderr io.Writer = os.Stderr
	data := os.Getenv(childData)
	switch kind, what, _ := strings.Cut(os.Getenv(childKill), " "); kind {
	case "bytes":
		var most int64
		if _, err := fmt.Sscan(what, &most); err != nil {
			panic(err)
		}
		go dieWhen(func() bool { return size(data) >= most }, die)
	case "file":
		go dieWhen(func() bool {
			found, _ := filepath.Glob(filepath.Join(data, what))
			return len(found) > 0
		}, die)
	case "step":
		madeComet = func(step string) {
			if step == what {
				die()
			}
		}
	case "fill":
		madeComet = func(step string) {
			if step == what {
				fill(filepath.Join(data, filler))
			}
		}
	case "line":
		stderr = &watched{words: what, found: die}
	}
	if err := run(context.Background(), strings.Split(args, "\n"), os.Stdout, stderr); err != nil {
		fmt.Fprintf(os.Stderr, "starling-iavl: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// filler is the file in the data folder that fills the disk.
const filler = "filler"

func fill(path string) {
	f, err := os.Create(path)
	if err != nil {
		panic(err)
	}
	for b := make([]byte, 4096); err == nil; {
		_, err = f.Write(b)
	}
	if closed := f.Close(); closed != nil || !errors.Is(err, syscall.ENOSPC) {
		panic(errors.Join(err, closed))
	}
}

// dieWhen polls without a pause, because the event may last only for a moment.
func dieWhen(there func() bool, die func()) {
	for !there() {
		runtime.Gosched()
	}
	die()
}

// size returns the total size of all files below a folder.
func size(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			if info, err := e.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// child runs starling-iavl in a separate process. killed reports whether it was killed as specified
// by kill; otherwise err is its error.
func child(t *testing.T, home, kill string, args ...string) (out string, killed bool, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(args, "\n"), childKill+"="+kill, childData+"="+dataDir(home))
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err = cmd.Run()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return b.String(), status.Signaled() && status.Signal() == syscall.SIGKILL, err
}
