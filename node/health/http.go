package health

import (
	"encoding/json"
	"net/http"
)

// Paths of the handlers.
const (
	PathLive  = "/livez"
	PathReady = "/readyz"
)

// Register mounts GET /livez and GET /readyz. Each responds with a Report in JSON, with status 200
// if the check passes and 503 otherwise.
func Register(mux *http.ServeMux, report func() Report) {
	mux.HandleFunc("GET "+PathLive, handler(report, func(r Report) bool { return r.Live }))
	mux.HandleFunc("GET "+PathReady, handler(report, func(r Report) bool { return r.Ready }))
}

func handler(report func() Report, good func(Report) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		r := report()
		body, err := json.Marshal(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !good(r) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(append(body, '\n')) // the client may have disconnected
	}
}
