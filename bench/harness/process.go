package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/child"
)

// Process is the parent's handle of a child (internal/child). A nil Process has ended. It is not
// safe for concurrent use.
type Process struct {
	Name     string
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	out      *bufio.Writer // to stdin
	answers  *json.Decoder
	stderr   head
	turns    bool          // the child runs only while it processes a request
	patience time.Duration // how long End waits before it kills the child
	ended    bool
}

// ChildCommand is the hidden command with which this program runs itself. The child's name follows
// it.
const ChildCommand = "child"

// Start runs a child of this program (see ChildCommand), sends it begin, and decodes its response
// into a (nil: discard it). The child is stopped between requests.
func Start(ctx context.Context, child, name string, begin, a any) (*Process, error) {
	p, err := StartRunning(ctx, child, name, begin, a)
	if err != nil {
		return nil, err
	}
	p.turns, p.patience = true, 10*time.Second
	p.Pause()
	return p, nil
}

// StartRunning is Start for a child that is never stopped, such as a server that others use.
func StartRunning(ctx context.Context, child, name string, begin, a any) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the path of this program, to run it as %s: %w", name, err)
	}
	return StartProgram(ctx, name, begin, a, self, ChildCommand, child)
}

// StartProgram is StartRunning for another program. The program is killed when ctx or this process
// ends.
func StartProgram(ctx context.Context, name string, begin, a any, path string, args ...string) (*Process, error) {
	p := &Process{Name: name, cmd: exec.CommandContext(ctx, path, args...), patience: 30 * time.Second}
	p.cmd.SysProcAttr = attributes()
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = 10 * time.Second
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p.out = bufio.NewWriterSize(p.stdin, 1<<16)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.answers = json.NewDecoder(stdout)
	if err := runner.StartCommand(p.cmd); err != nil {
		return nil, fmt.Errorf("starting the process %s: %w", name, err)
	}
	if err := p.exchange(begin, nil, a); err != nil {
		p.End()
		return nil, err
	}
	return p, nil
}

// Ask sends a request, waits for its response, and decodes it into a (nil: discard it). A child
// that takes turns runs only meanwhile.
func (p *Process) Ask(request, a any) error { return p.AskWith(request, nil, a) }

// AskWith is Ask for a request that is followed by changes.
func (p *Process) AskWith(request any, changes []child.Change, a any) error {
	if p.turns {
		p.Resume()
		defer p.Pause()
	}
	return p.exchange(request, changes, a)
}

func (p *Process) exchange(request any, changes []child.Change, a any) error {
	err := json.NewEncoder(p.out).Encode(request)
	if err == nil {
		err = child.WriteChanges(p.out, changes)
	}
	if err == nil {
		err = p.out.Flush()
	}
	// A failed child sends its error before it exits, and reads no more: its response explains more
	// than the failed write.
	reply := child.Reply[any]{Answer: a}
	if decoded := p.answers.Decode(&reply); decoded != nil {
		if err == nil {
			err = decoded
		}
		return p.died(err)
	}
	if reply.Error != "" {
		return fmt.Errorf("%s: %s", p.Name, reply.Error)
	}
	return err
}

// Pause stops the child until Resume, so that the others have the machine. The child must not be
// processing a request. A garbage collection or compaction in progress continues in the child's
// next turn.
func (p *Process) Pause() {
	_ = p.cmd.Process.Signal(syscall.SIGSTOP) // if the child is gone, the next request fails
}

// Resume continues a child after Pause.
func (p *Process) Resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// died returns the reason why a child did not respond.
func (p *Process) died(cause error) error {
	p.ended = true
	_ = p.stdin.Close() // the child is gone
	if err := p.cmd.Wait(); err != nil {
		cause = err
	}
	hint := ""
	if state := p.cmd.ProcessState; state != nil && strings.Contains(state.String(), "killed") {
		hint = "; if memory ran out, use fewer --keys"
	}
	if text := p.stderr.String(); text != "" {
		hint += "\n" + text
	}
	return fmt.Errorf("the process of %s ended early: %w%s", p.Name, cause, hint)
}

// Ended reports whether the child has ended.
func (p *Process) Ended() bool { return p.ended }

// Kill ends the child by SIGKILL.
func (p *Process) Kill() {
	if p.ended {
		return
	}
	p.ended = true
	_ = p.cmd.Process.Kill() // it may have exited
	_ = p.stdin.Close()
	_ = p.cmd.Wait() // it was killed
}

// End lets the child close its resources, and waits until it exits. A child that hangs is killed.
func (p *Process) End() {
	if p == nil || p.ended {
		return
	}
	p.ended = true
	p.Resume()
	_ = p.stdin.Close() // the child exits when it reads EOF
	giveUp := time.AfterFunc(p.patience, func() { _ = p.cmd.Process.Kill() })
	defer giveUp.Stop()
	_ = p.cmd.Wait() // the exit status does not matter: all measurements are done
}

// head keeps the beginning of a child's stderr, which is the part of a panic that matters.
type head struct{ b bytes.Buffer }

const headBytes = 4 << 10

func (h *head) Write(b []byte) (int, error) {
	if room := headBytes - h.b.Len(); room > 0 {
		h.b.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

func (h *head) String() string { return strings.TrimSpace(h.b.String()) }
