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
	"time"
)

// Process is a child, seen from the parent: it answers each JSON line with another. A nil Process has ended.
type Process struct {
	Name     string
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	out      *bufio.Writer // to stdin
	answers  *json.Decoder
	stderr   head
	turns    bool          // it runs while it is asked something and is stopped otherwise
	patience time.Duration // how long it may take to end
	ended    bool
}

// Answer is what a child says to a request. A Failure is the error that it met, if any; the child goes on.
type Answer interface{ Failure() string }

// Start runs this program with command as a child and tells it begin. It is stopped while it is not asked.
func Start(ctx context.Context, command, name string, begin any, a Answer) (*Process, error) {
	return startSelf(ctx, command, name, begin, a, true)
}

// StartRunning is Start of a child that is never stopped: it serves while the parent asks another.
func StartRunning(ctx context.Context, command, name string, begin any, a Answer) (*Process, error) {
	return startSelf(ctx, command, name, begin, a, false)
}

func startSelf(ctx context.Context, command, name string, begin any, a Answer, turns bool) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("this program does not find itself to start it again for %s: %w", name, err)
	}
	p, err := StartProgram(ctx, name, self, command)
	if err != nil {
		return nil, err
	}
	if p.turns = turns; turns {
		p.patience = 10 * time.Second
	}
	if err := p.exchange(begin, nil, a); err != nil {
		p.End()
		return nil, err
	}
	return p, nil
}

// StartProgram runs any program that answers in this way, and never stops it. It is killed when ctx ends, and does not outlive this process.
func StartProgram(ctx context.Context, name, path string, args ...string) (*Process, error) {
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
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("the process for %s did not start: %w", name, err)
	}
	return p, nil
}

// Ask lets the child do something, and nothing else before and after where it takes turns.
func (p *Process) Ask(request any, a Answer) error { return p.AskWith(request, nil, a) }

// AskWith is Ask of a request that something follows.
func (p *Process) AskWith(request any, follow func(*bufio.Writer) error, a Answer) error {
	if p.turns {
		proceed(p.cmd.Process)
	}
	return p.exchange(request, follow, a)
}

func (p *Process) exchange(request any, follow func(*bufio.Writer) error, a Answer) error {
	err := json.NewEncoder(p.out).Encode(request)
	if err == nil && follow != nil {
		err = follow(p.out)
	}
	if err == nil {
		err = p.out.Flush()
	}
	// A child that failed says so before it goes, and then does not read.
	if decoded := p.answers.Decode(a); decoded != nil {
		if err == nil {
			err = decoded
		}
		return p.died(err)
	}
	if p.turns {
		freeze(p.cmd.Process)
	}
	if text := a.Failure(); text != "" {
		return fmt.Errorf("%s: %s", p.Name, text)
	}
	return err
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
	if p == nil || p.ended {
		return
	}
	p.ended = true
	if p.turns {
		proceed(p.cmd.Process)
	}
	_ = p.stdin.Close() // the child ends when it reads that
	giveUp := time.AfterFunc(p.patience, func() { _ = p.cmd.Process.Kill() })
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
