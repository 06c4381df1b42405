package syncbench

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

	"github.com/starling-kv/starling/bench/harness"
)

// process is a child, seen from the parent: it answers each JSON line with another. Unlike the harness's it is never stopped, since a
// server has to serve while the parent waits for the joiner, and it may be another program.
type process struct {
	name    string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	out     *bufio.Writer // to stdin
	answers *json.Decoder
	stderr  head
	ended   bool
}

// start runs a program. It is killed when ctx ends, and on Linux when this process does.
func start(ctx context.Context, name, path string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.CommandContext(ctx, path, args...)}
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

// startSelf runs this program as a child in a role.
func startSelf(ctx context.Context, b begin) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("this program does not find itself to start it again for the %s: %w", b.Role, err)
	}
	p, err := start(ctx, b.Role, self, ChildCommand)
	if err != nil {
		return nil, err
	}
	if err := p.ask(b, nil, new(answer)); err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

// ask sends a request, what follows it, if anything, and waits for the answer.
func (p *process) ask(request any, follow func(*bufio.Writer) error, a harness.Answer) error {
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
	if text := a.Failure(); text != "" {
		return fmt.Errorf("%s: %s", p.name, text)
	}
	return err
}

// died tells why a child has no answer.
func (p *process) died(cause error) error {
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
	return fmt.Errorf("the process of %s ended early: %w%s", p.name, cause, hint)
}

// end lets the child close what it has and waits for it; what hangs is killed.
func (p *process) end() {
	if p == nil || p.ended {
		return
	}
	p.ended = true
	_ = p.stdin.Close() // the child ends when it reads that
	giveUp := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
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
