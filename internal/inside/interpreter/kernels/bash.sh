# The bash kernel. Descriptor 3 gives what is to be run as three texts that end in NUL: a
# number, a call of __enter with environment variables, and the code. 4 takes events.
# What is run sees neither, nor 8 and 9, through which a mark ends each run's output.
exec 8>&1 9>&2 5<&- </dev/null
__id= __count=0 __broken= __names=() __saved=()
# Code is run at the top level, since what it declares in a function would be gone after it. So an
# interrupt is a trap that leaves all loops, that below included.
trap '__broken=1; continue 9999' INT
__enter() { # NAME VALUE...: for one run
	__names=() __saved=()
	while (($#)); do
		[[ -v $1 ]] && __saved+=("$1=${!1}")
		__names+=("$1")
		export "$1=$2"
		shift 2
	done
}
__leave() { # STATUS: of the code
	[[ $__id ]] || return 0
	local status=$1
	((${#__names[@]})) && unset "${__names[@]}"
	((${#__saved[@]})) && export "${__saved[@]}"
	if [[ $__broken ]]; then
		printf '{"type":"error","name":"Interrupted","value":"","traceback":""}\n' >&4
	elif ((status)); then
		printf '{"type":"error","name":"ExitCode","value":"%d","traceback":""}\n' "$status" >&4
	fi
	printf %s '@MARK@' >&8
	printf %s '@MARK@' >&9
	printf '{"type":"done","id":%d}\n' "$__id" >&4
	__id= __broken= __names=() __saved=()
}
printf '{"type":"ready"}\n' >&4
while __leave "$?"; IFS= read -r -d '' -u 3 __next && IFS= read -r -d '' -u 3 __env && IFS= read -r -d '' -u 3 __code; do
	__id=$__next
	printf '{"type":"count","count":%d}\n' $((++__count)) >&4
	eval "$__env"
	eval "$__code" 3<&- 4>&- 8>&- 9>&-
done
