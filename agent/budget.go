package agent

import (
	"fmt"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// Budget bounds what an agent takes. Zero is no bound. A response that is on its way is not cut off:
// the last one may reach or exceed the budget, and its calls are not carried out, except one of
// terminate. Tokens that the model does not report are estimated.
type Budget struct {
	// Tokens bounds the tokens of requests and responses, InputTokens those of requests alone.
	Tokens, InputTokens int
	// Cost bounds the cost, in the currency of Price.
	Cost float64
}

// Price is what a million tokens cost. All amounts have the same currency.
type Price struct {
	Input  float64
	Cached float64 // of input that the vendor had in its cache; 0 means Input
	Output float64
}

// cost returns the price of a usage.
func (p Price) cost(u model.Usage) float64 {
	cached := p.Cached
	if cached == 0 {
		cached = p.Input
	}
	return (float64(u.Input-u.Cached)*p.Input + float64(u.Cached)*cached + float64(u.Output)*p.Output) / 1e6
}

// Spent is what an agent has taken. Usage that the model does not report is estimated.
type Spent struct {
	Usage model.Usage `json:"usage"`
	Cost  float64     `json:"cost,omitempty"`
}

func (b Budget) check(p Price) error {
	if b.Tokens < 0 || b.InputTokens < 0 || b.Cost < 0 {
		return sandpit.Errorf(sandpit.Invalid, "a budget is negative")
	}
	if b.Cost > 0 && p.Input <= 0 && p.Output <= 0 {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "a budget in money needs the price of the model"), "state the price, or bound the tokens instead")
	}
	return nil
}

// spentText returns why the budget is spent, or "" if it is not.
func (b Budget) spentText(s Spent) string {
	if used := s.Usage.Input + s.Usage.Output; b.Tokens > 0 && used >= b.Tokens {
		return fmt.Sprintf("Terminated: Reached the budget of %d tokens (%d used)", b.Tokens, used)
	}
	if used := s.Usage.Input; b.InputTokens > 0 && used >= b.InputTokens {
		return fmt.Sprintf("Terminated: Reached the budget of %d tokens of input (%d used)", b.InputTokens, used)
	}
	if b.Cost > 0 && s.Cost >= b.Cost {
		return fmt.Sprintf("Terminated: Reached the budget of %.4g (%.4g used)", b.Cost, s.Cost)
	}
	return ""
}

// countUsage returns the usage of a response: as the model reports it, or an estimate of what it leaves out,
// because a budget would have no effect then.
func (a *Agent) countUsage(m model.Message, u model.Usage) model.Usage {
	if u.Input > 0 && u.Output > 0 {
		return u
	}
	if !a.estimates {
		a.estimates = true
		a.notify("the model does not report its usage: the tokens are estimated")
	}
	if u.Input <= 0 {
		u.Input, u.Cached = a.estimate(), 0
	}
	if u.Output <= 0 {
		u.Output = tokensOf(m)
	}
	return u
}

// addUsage adds the usage of a response, without trusting its numbers.
func (a *Agent) addUsage(u model.Usage) {
	u.Input, u.Output = max(u.Input, 0), max(u.Output, 0)
	u.Cached = min(max(u.Cached, 0), u.Input)
	a.mu.Lock()
	a.spent.Usage = a.spent.Usage.Add(u)
	a.spent.Cost += a.o.Price.cost(u)
	spent := a.spent
	a.mu.Unlock()
	a.emit(Event{Kind: EventUsage, Usage: &u, Spent: &spent})
}
