package ops

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Answers has each request, a line of JSON and what it says that follows, answered by another line,
// until there are no more. An error of answer is the last line, {"error":…}, since what follows the
// request may be unread. Name is the request's, for errors.
func Answers[R interface{ Name() string }, A any](stdin io.Reader, stdout io.Writer, answer func(R, *bufio.Reader) (A, error)) error {
	in, out := bufio.NewReaderSize(stdin, 1<<20), json.NewEncoder(stdout)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var r R
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("an unreadable request: %w", err)
		}
		a, err := answer(r, in)
		if err != nil {
			err = fmt.Errorf("%s: %w", r.Name(), err)
			return errors.Join(err, out.Encode(failure{err.Error()}))
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

type failure struct {
	Error string `json:"error"`
}
