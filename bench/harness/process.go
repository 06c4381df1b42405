package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Process is a child, seen from the parent. It runs while it is asked something and is stopped otherwise.
type Process struct {
	Name    string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers *json.Decoder
	stderr  head
	ended   bool
}

// Answer is what a child says to a request. A Failure is the error that it met, if any; the child goes on.
type Answer interface{ Failure() string }

// Start runs this program with command as a child and tells it begin. It is killed when ctx ends, and never outlives this process.
func Start(ctx context.Context, command, name string, begin any, a Answer) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("this program does not find itself to start it again for %s: %w", name, err)
	}
	p := &Process{Name: name, cmd: exec.CommandContext(ctx, self, command)}
	p.cmd.SysProcAttr = attributes()
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = 10 * time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.answers = json.NewDecoder(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("the process for %s did not start: %w", name, err)
	}
	if err := p.exchange(begin, a); err != nil {
		p.End()
		return nil, err
	}
	return p, nil
}

// Ask lets the child do something, and nothing else before and after.
func (p *Process) Ask(request any, a Answer) error {
	proceed(p.cmd.Process)
	return p.exchange(request, a)
}

func (p *Process) exchange(message any, a Answer) error {
	if err := json.NewEncoder(p.stdin).Encode(message); err != nil {
		return p.died(err)
	}
	if err := p.answers.Decode(a); err != nil {
		return p.died(err)
	}
	freeze(p.cmd.Process)
	if text := a.Failure(); text != "" {
		return fmt.Errorf("%s: %s", p.Name, text)
	}
	return nil
}

// died tells why a child has no answer.
func (p *Process) died(cause error) error {
	p.ended = true
	_ = p.stdin.Close() // it is gone
	if err := p.cmd.Wait(); err != nil {
		cause = err
	}
	hint := ""
	if state := p.cmd.ProcessState; state != nil && strings.Contains(state.String(), "killed") {
		hint = "; if memory ran out, ask for fewer --keys"
	}
	if text := p.stderr.String(); text != "" {
		hint += "\n" + text
	}
	return fmt.Errorf("the process of %s ended early: %w%s", p.Name, cause, hint)
}

// Ended says whether the child is gone.
func (p *Process) Ended() bool { return p.ended }

// End lets the child close what it has and waits for it; what hangs is killed.
func (p *Process) End() {
	if p.ended {
		return
	}
	p.ended = true
	proceed(p.cmd.Process)
	_ = p.stdin.Close() // the child ends when it reads that
	giveUp := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer giveUp.Stop()
	_ = p.cmd.Wait() // all was measured: how it ends changes nothing
}

// head keeps the beginning of what a child says on stderr: of a panic that is the part which counts.
type head struct{ b bytes.Buffer }

const headBytes = 4 << 10

func (h *head) Write(b []byte) (int, error) {
	if room := headBytes - h.b.Len(); room > 0 {
		h.b.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

func (h *head) String() string { return strings.TrimSpace(h.b.String()) }
