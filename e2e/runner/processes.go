package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// tailLines is the number of last lines of a log that are shown when its process has died.
const tailLines = 15

// Spec describes a process to start.
type Spec struct {
	Name string   // for messages
	Path string   // of the program
	Args []string // without the program's name
	Env  []string // added to this process's own, except variables that configure nodes
	Dir  string   // working directory; empty: the current one
	Log  string   // file to which its output is appended
	// limit of its memory; nil: none
	Memory *MemoryGroup
	// the process may end by itself: its end is not a death, whatever its exit status
	Ends bool
}

// Processes owns the processes that it started. Its methods may be called concurrently.
type Processes struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	all      []*Process // in the order of their start
	stopping bool
}

// Process is a started process.
type Process struct {
	spec Spec
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and err is set
	err  error

	mu     sync.Mutex
	asked  bool // it was asked to end, or has ended
	mayEnd bool // its end is not a death
}

// DiedError is the cause of Processes.Context once a process ended unexpectedly.
type DiedError struct {
	Name string
	Err  error // nil: exit status 0
	Log  string
	Tail []string // last lines of its log
}

func (e *DiedError) Error() string {
	how := "exit status 0"
	if e.Err != nil {
		how = e.Err.Error()
	}
	if len(e.Tail) == 0 {
		return fmt.Sprintf("%s ended early (%s) and wrote nothing to %s", e.Name, how, e.Log)
	}
	return fmt.Sprintf("%s ended early (%s); the last lines of %s:\n  %s", e.Name, how, e.Log, strings.Join(e.Tail, "\n  "))
}

func (e *DiedError) Unwrap() error { return e.Err }

// NewProcesses returns a supervisor without processes. Its Context ends with parent, and when a
// process dies.
func NewProcesses(parent context.Context) *Processes {
	ctx, cancel := context.WithCancelCause(parent)
	return &Processes{ctx: ctx, cancel: cancel}
}

// Context is done when the parent context is, or when a process ended unexpectedly: then
// context.Cause is a *DiedError. Code that waits for a node should use it.
func (p *Processes) Context() context.Context { return p.ctx }

// Start starts a process.
func (p *Processes) Start(spec Spec) (*Process, error) {
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", spec.Name, err)
	}
	// the process has its own descriptor
	defer log.Close()
	// Stop ends the process, not a context
	path, args := spec.Path, spec.Args
	if spec.Memory != nil {
		path, args = spec.Memory.enter(path, args)
	}
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Env = append(environment(), spec.Env...)
	cmd.Dir = spec.Dir
	// a file and not a pipe, so that Wait does not wait for children that inherited it
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes()
	proc := &Process{spec: spec, cmd: cmd, done: make(chan struct{}), mayEnd: spec.Ends}

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return nil, fmt.Errorf("%s is not started: the network is being stopped", spec.Name)
	}
	if err := StartCommand(cmd); err != nil {
		return nil, fmt.Errorf("%s does not start: %w", spec.Name, err)
	}
	p.all = append(p.all, proc)
	go func() {
		proc.err = cmd.Wait()
		proc.mu.Lock()
		unasked := !proc.asked && !proc.mayEnd
		proc.asked = true // its process group is no longer ours to signal
		proc.mu.Unlock()
		close(proc.done)
		if unasked {
			p.cancel(&DiedError{Name: spec.Name, Err: proc.err, Log: spec.Log, Tail: Tail(spec.Log, tailLines)})
		}
	}()
	return proc, nil
}

// Stop ends all processes: SIGTERM, and after grace SIGKILL. It returns when all have ended, with
// an error for each that had to be killed. No process can be started afterwards. A second call has
// no effect.
func (p *Processes) Stop(grace time.Duration) error {
	p.mu.Lock()
	again := p.stopping
	p.stopping = true
	all := p.all
	p.mu.Unlock()
	if again {
		return nil
	}
	var (
		wg   sync.WaitGroup
		errs = make([]error, len(all))
	)
	for i, proc := range all {
		wg.Go(func() { errs[i] = proc.Stop(grace) })
	}
	wg.Wait()
	p.cancel(context.Canceled)
	return errors.Join(errs...)
}

// Name returns the name of the process in messages.
func (p *Process) Name() string { return p.spec.Name }

// Log returns the file with its output.
func (p *Process) Log() string { return p.spec.Log }

// Pid returns its process id, which is also that of its group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// MayEnd declares that from now on the process may end by itself, as with Spec.Ends.
func (p *Process) MayEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mayEnd = true
}

// Pause stops the process and its group without ending them (SIGSTOP), until Resume. If it has
// ended already, Pause has no effect.
func (p *Process) Pause() { p.send(syscall.SIGSTOP) }

// Resume continues a paused process.
func (p *Process) Resume() { p.send(syscall.SIGCONT) }

func (p *Process) send(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// Stop ends the process: SIGTERM to its group and, if it does not end within grace, SIGKILL and an
// error. If it has ended already, Stop returns nil.
func (p *Process) Stop(grace time.Duration) error { return p.stop(syscall.SIGTERM, grace) }

// Interrupt is Stop with SIGINT, as Ctrl-C sends it.
func (p *Process) Interrupt(grace time.Duration) error { return p.stop(syscall.SIGINT, grace) }

func (p *Process) stop(sig syscall.Signal, grace time.Duration) error {
	p.signal(sig)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
	return fmt.Errorf("%s did not end within %v of being asked to (%v) and was killed; its log: %s", p.spec.Name, grace, sig, p.spec.Log)
}

// Kill ends the process and its group at once, by SIGKILL, like a crash. If it has ended already,
// Kill has no effect.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// ExitStatus returns the exit status of the process, -1 if a signal ended it. It waits for the end.
func (p *Process) ExitStatus() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// ExitError returns the process's error, nil for exit status 0. It waits for the end.
func (p *Process) ExitError() error {
	<-p.done
	return p.err
}

func (p *Process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked {
		p.asked = true
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
		// a paused process handles the signal only after SIGCONT
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGCONT)
	}
}

// environment returns this process's environment without variables that would override the
// configuration of every node: STARLINGD_HOME, which a reader of the README has set, would give
// them all one home.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "STARLINGD_") || strings.HasPrefix(variable, "CMT") || strings.HasPrefix(variable, "TMHOME")
	})
}

// Tail returns the last n lines of a file, fewer where it is shorter or cannot be read.
func Tail(path string, n int) []string {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	text := strings.TrimRight(string(content), "\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-n):]
}
