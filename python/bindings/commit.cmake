# cmake -D SOURCE=... -D GIVEN=... -D OUTPUT=... -P commit.cmake
#
# Writes which commit SOURCE is at, unless OUTPUT says so already: as Python when its name ends so, as plain text
# otherwise. What is GIVEN goes first; then git, if SOURCE is the top of a checkout; then SOURCE/COMMIT, which a source
# distribution has. Unknown is empty.
cmake_minimum_required(VERSION 3.25)

# The commit that git is at, with "+changes" when a file that it knows is another one by now.
function(ask_git variable)
  # The tree may be another user's, as in a container that builds wheels.
  set(git git -c safe.directory=* -C ${SOURCE})
  execute_process(COMMAND ${git} rev-parse --show-toplevel HEAD RESULT_VARIABLE failed OUTPUT_VARIABLE told
                  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    return()
  endif()
  string(REPLACE "\n" ";" told "${told}")
  list(POP_BACK told commit)
  file(REAL_PATH "${told}" top)
  file(REAL_PATH "${SOURCE}" source)
  if(NOT top STREQUAL source) # somebody else's repository, with these files in it
    return()
  endif()
  execute_process(COMMAND ${git} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND commit "+changes")
  endif()
  set(${variable} ${commit} PARENT_SCOPE)
endfunction()

set(commit "${GIVEN}")
if(NOT commit)
  ask_git(commit)
endif()
if(NOT commit AND EXISTS ${SOURCE}/COMMIT)
  file(STRINGS ${SOURCE}/COMMIT commit LIMIT_COUNT 1 REGEX "^[0-9A-Za-z+._-]*$")
endif()

set(text "${commit}\n")
if(OUTPUT MATCHES "\\.py$")
  set(text "COMMIT = \"${commit}\"\n")
endif()
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} known)
  if(known STREQUAL text)
    return()
  endif()
endif()
file(WRITE ${OUTPUT} "${text}")
