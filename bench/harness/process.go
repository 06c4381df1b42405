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

// Process is a child as its parent sees it: it answers each line of JSON with another. A nil
// Process has ended. It is for one goroutine.
type Process struct {
	Name     string
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	out      *bufio.Writer // to stdin
	answers  *json.Decoder
	stderr   head
	turns    bool          // it runs only while it works on a request
	patience time.Duration // how long End waits before it kills
	ended    bool
}

// Answer is a child's answer to a request. Failure returns its error, or ""; the child can be asked
// again afterwards.
type Answer interface{ Failure() string }

// Start runs this program with command as a child, and sends it begin. The child is stopped between
// requests.
func Start(ctx context.Context, command, name string, begin any, a Answer) (*Process, error) {
	return startSelf(ctx, command, name, begin, a, true)
}

// StartRunning is Start of a child that is never stopped, such as a server that others use.
func StartRunning(ctx context.Context, command, name string, begin any, a Answer) (*Process, error) {
	return startSelf(ctx, command, name, begin, a, false)
}

func startSelf(ctx context.Context, command, name string, begin any, a Answer, turns bool) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find the path of this program, to start it again for %s: %w", name, err)
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

// StartProgram runs any program that answers in this way, and never stops it. The program is killed
// when ctx ends, and does not outlive this process.
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

// Ask sends a request and waits for its answer. A child that takes turns runs only meanwhile.
func (p *Process) Ask(request any, a Answer) error { return p.AskWith(request, nil, a) }

// AskWith is Ask of a request that is followed by data, which follow writes.
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
	// A child that failed answers with its error before it exits, and reads no more: its answer
	// explains more than the failed write.
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

// Pause stops the child until Resume, so that others have the machine. It must not be answering a
// request.
func (p *Process) Pause() { freeze(p.cmd.Process) }

// Resume undoes Pause.
func (p *Process) Resume() { proceed(p.cmd.Process) }

// died returns why a child did not answer.
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

// Ended reports whether the child is gone.
func (p *Process) Ended() bool { return p.ended }

// End lets the child close what it has open, and waits for it to exit; a child that hangs is
// killed.
func (p *Process) End() {
	if p == nil || p.ended {
		return
	}
	p.ended = true
	p.Resume()
	_ = p.stdin.Close() // the child exits when it reads the end
	giveUp := time.AfterFunc(p.patience, func() { _ = p.cmd.Process.Kill() })
	defer giveUp.Stop()
	_ = p.cmd.Wait() // everything is measured by now: how it exits changes nothing
}

// head keeps the beginning of a child's stderr: of a panic, that is the part that matters.
type head struct{ b bytes.Buffer }

const headBytes = 4 << 10

func (h *head) Write(b []byte) (int, error) {
	if room := headBytes - h.b.Len(); room > 0 {
		h.b.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

func (h *head) String() string { return strings.TrimSpace(h.b.String()) }
