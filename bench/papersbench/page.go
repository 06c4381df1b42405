package papersbench

import (
	"bytes"
	_ "embed"
	"html/template"
	"strings"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// paper has the figures of a paper, for the page.
type paper struct {
	Title, Short string
	Figures      []pageFigure
}

type pageFigure struct {
	ID, Title, Paper, How string
	Differs               []string
	Reason, Needs         string
	Command               string
	Report                *report // nil: not measured
	Label                 string
	Pictures              []string
	Numbered              bool // a row has a number of the paper
}

// papers are the papers, by the first part of a figure's id.
var papers = []struct{ short, title string }{
	{"avlstar", "AVL*: Robust and Fast Blockchain State Synchronization (Fynn et al., 2022)"},
	{"join", "Ours: a join while the chain moves"},
	{"rainblock", "RainBlock: Faster Transaction Processing in Public Blockchains (Ponnapalli et al., 2020)"},
	{"chainkv", "ChainKV: A Semantics-Aware Key-Value Store for Ethereum System (Chen et al., 2023)"},
	{"bor", "BoR: Toward High-Performance Permissioned Blockchain in RDMA-Enabled Network (Huang et al., 2019)"},
}

// page returns the page of all figures, with the reports by id.
func page(reports map[string]*report) ([]byte, error) {
	var all []paper
	for _, p := range papers {
		of := paper{Title: p.title, Short: p.short}
		for _, f := range figures {
			if !strings.HasPrefix(f.id, p.short+"/") {
				continue
			}
			pf := pageFigure{
				ID: f.id, Title: f.title, Paper: f.paper, How: f.how, Differs: f.differs, Reason: f.reason, Needs: f.needs, Report: reports[f.id],
				Command: "go run . papers --only " + f.id,
			}
			if r := pf.Report; r != nil {
				pf.Label = r.label()
				for _, c := range r.Charts {
					pf.Pictures = append(pf.Pictures, pictureName(f.id, c))
				}
				for _, row := range r.Rows {
					pf.Numbered = pf.Numbered || row.Paper != ""
				}
			}
			of.Figures = append(of.Figures, pf)
		}
		all = append(all, of)
	}
	var out bytes.Buffer
	err := pageTemplate.Execute(&out, all)
	return out.Bytes(), err
}
