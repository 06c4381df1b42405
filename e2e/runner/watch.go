package runner

import (
	"context"
	"fmt"
	"net/http"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/cometbft/cometbft/types"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// pollEvery is the interval of Poll, short compared with the half second of a block.
const pollEvery = 50 * time.Millisecond

// Poll calls done until it returns true, or ctx ends. Then the error has the awaited condition and
// the cause of that end, which names a node that died.
func Poll(ctx context.Context, what string, done func() bool) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		if done() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// App is the application's report about itself (ABCI Info).
type App struct {
	Height int64
	Hash   []byte
}

// AppInfo asks a node's application for its height and hash. They belong together: the application
// publishes both at once.
func (h *Home) AppInfo(ctx context.Context) (App, error) {
	client, err := h.client()
	if err != nil {
		return App{}, err
	}
	info, err := client.ABCIInfo(ctx)
	if err != nil {
		return App{}, fmt.Errorf("%s: %w", h.Name, err)
	}
	return App{info.Response.LastBlockHeight, info.Response.LastBlockAppHash}, nil
}

// Status is the consensus status of a node.
type Status struct {
	Earliest   int64 // oldest block that it has: above 1 after a state sync
	Height     int64 // newest block
	CatchingUp bool
}

// Status asks a node for its height, and whether it is catching up.
func (h *Home) Status(ctx context.Context) (Status, error) {
	client, err := h.client()
	if err != nil {
		return Status{}, err
	}
	status, err := client.Status(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("%s: %w", h.Name, err)
	}
	return Status{status.SyncInfo.EarliestBlockHeight, status.SyncInfo.LatestBlockHeight, status.SyncInfo.CatchingUp}, nil
}

// Header has the fields that a light client trusts: a block's height, its hash, and the hash of the
// application's state *before* it.
type Header struct {
	Height  int64
	Hash    []byte
	AppHash []byte
	Round   int32 // of the commit

	Proposer types.Address // of the validator that proposed the block
}

// Header asks a node for the header of a height.
func (h *Home) Header(ctx context.Context, height int64) (Header, error) {
	client, err := h.client()
	if err != nil {
		return Header{}, err
	}
	commit, err := client.Commit(ctx, &height)
	if err != nil {
		return Header{}, fmt.Errorf("%s: %w", h.Name, err)
	}
	return Header{commit.Height, commit.Hash(), commit.AppHash, commit.Commit.Round, commit.ProposerAddress}, nil
}

// connections closes idle connections before CometBFT does, after 10 s: a request that meets the
// close fails.
var connections = &http.Transport{IdleConnTimeout: 5 * time.Second}

// client returns an RPC client. All share their connections.
func (h *Home) client() (*rpchttp.HTTP, error) {
	client, err := rpchttp.NewWithClient(h.RPC(), "/websocket", &http.Client{Timeout: 30 * time.Second, Transport: connections})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return client, nil
}

// MetricValues are a node's Prometheus metrics by name.
type MetricValues map[string]float64

// Scrape reads a node's Prometheus endpoint. Each metric is the sum over its labels, and histograms
// are 0.
func (h *Home) Scrape(ctx context.Context) (MetricValues, error) {
	values := MetricValues{}
	err := h.scrape(ctx, func(name string, metric *dto.Metric) { values[name] += valueOf(metric) })
	return values, err
}

// ScrapeLabelled reads the metrics with one label at most, by their name and the label's value:
// "name value". A histogram is three metrics: "name_count value", "name_sum value", and
// "name_unwaited value", the number of observations in its bucket 0.
func (h *Home) ScrapeLabelled(ctx context.Context) (MetricValues, error) {
	values := MetricValues{}
	err := h.scrape(ctx, func(name string, metric *dto.Metric) {
		label := ""
		switch l := metric.GetLabel(); len(l) {
		case 0:
		case 1:
			label = " " + l[0].GetValue()
		default:
			return
		}
		values[name+label] = valueOf(metric)
		if m := metric.GetHistogram(); m != nil {
			values[name+"_count"+label], values[name+"_sum"+label] = float64(m.GetSampleCount()), m.GetSampleSum()
			for _, b := range m.GetBucket() {
				if b.GetUpperBound() == 0 {
					values[name+"_unwaited"+label] = float64(b.GetCumulativeCount())
				}
			}
		}
	})
	return values, err
}

func valueOf(metric *dto.Metric) float64 {
	return metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
}

func (h *Home) scrape(ctx context.Context, each func(name string, metric *dto.Metric)) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.Metrics(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("metrics of %s: %w", h.Name, err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return fmt.Errorf("metrics of %s: %w", h.Name, err)
	}
	for name, family := range families {
		for _, metric := range family.Metric {
			each(name, metric)
		}
	}
	return nil
}

// Starling returns a metric of ours, by its name without the prefix, 0 if the node has not counted
// anything yet.
func (m MetricValues) Starling(name string) int64 {
	for _, suffix := range []string{"", "_total"} {
		if value, ok := m["starling_"+name+suffix]; ok {
			return int64(value)
		}
	}
	return 0
}
