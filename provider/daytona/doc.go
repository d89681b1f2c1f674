// Package daytona creates sandboxes in Daytona's cloud, or on any server with the same API, such as
// sandpit's own.
//
// The control API creates, stops, archives and deletes sandboxes. Through a sandbox's toolbox API
// the provider uploads sandpit's guest and starts it, and the toolbox forwards connections to it. So
// commands, files, terminals and ports work as in every other sandbox. Where a guest cannot run, or
// if Options.Toolbox says so, the toolbox API itself is the guest; it can do less, and refuses the
// rest.
//
// Every sandbox has labels with its ID and its server, and intervals after which the cloud stops,
// archives and deletes it, so that it does not run, and cost, for ever when no server knows it.
package daytona
