package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	controlTimeout = 10 * time.Second
	maxRequest     = 1 << 20
)

// Handler returns the control endpoint of a relay.
//
//	GET /healthz     200 when all links listen
//	PUT /treatment   one Setting or a list of them, as JSON
func (r *Relay) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // served only after New has returned
	})
	mux.HandleFunc("PUT /treatment", func(w http.ResponseWriter, req *http.Request) {
		var settings []Setting
		decoder := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxRequest))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&settings); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := r.Set(settings...); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// Control is a client of a relay's control endpoint.
type Control struct{ URL string }

// Set changes the treatment of pairs of nodes: all settings are applied, or none if there is an
// error.
func (c Control) Set(ctx context.Context, settings ...Setting) error {
	body, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPut, "/treatment", body, http.StatusNoContent)
}

// Healthy returns nil when all links listen.
func (c Control) Healthy(ctx context.Context) error {
	return c.do(ctx, http.MethodGet, "/healthz", nil, http.StatusOK)
}

func (c Control) do(ctx context.Context, method, path string, body []byte, want int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, controlTimeout, errors.New("the relay does not answer"))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("relay: %s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(said))
	}
	return nil
}
